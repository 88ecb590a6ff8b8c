"""Async enqueue and results under ASGI: a real request through Django's handler."""

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.test import override_settings

from tests.asgi import application


async def request(path: str) -> Any:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"testserver")],
    }
    communicator = ApplicationCommunicator(application, scope)
    await communicator.send_input({"type": "http.request", "body": b"", "more_body": False})
    start = await communicator.receive_output(timeout=20)
    body = await communicator.receive_output(timeout=20)
    await communicator.wait(timeout=20)
    assert start["status"] == 200, body
    return json.loads(body["body"])


async def enqueue_run_and_read() -> Any:
    enqueued = await request("/enqueue/20/22/")
    assert enqueued["state"] == "READY"
    return await request(f"/execute-and-read/{enqueued['id']}/")


@pytest.mark.django_db(transaction=True)
def test_a_view_enqueues_and_reads_results() -> None:
    with override_settings(ROOT_URLCONF="tests.async_urls"):
        assert async_to_sync(enqueue_run_and_read)() == {"state": "SUCCESSFUL", "value": 42, "attempts": 1}
