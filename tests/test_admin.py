"""The admin looks and never touches."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_manta.execution.runners.inline import drain
from django_manta.ledger import Ledger, WorkerRecord
from django_manta.models import Attempt, Run
from tests.app import tasks


@pytest.fixture
def browser(db: None) -> Client:
    User.objects.create_superuser("admin", password="admin")
    client = Client()
    assert client.login(username="admin", password="admin")
    return client


@pytest.fixture
def some_runs(db: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    made = {
        "ready": tasks.add.enqueue(1, 2),
        "gone": tasks.doomed.enqueue("x"),
        "failed": tasks.fail.enqueue("<b>boom</b>"),
        "elsewhere": tasks.add.using(queue_name="slow").enqueue(1, 2),
    }
    drain(max_runs=3)
    Ledger().register(
        WorkerRecord(
            id="w-1", name="w", host="h", pid=1, version="0", cluster="c", queues=("default",), runner="inline"
        )
    )
    monkeypatch.delattr(tasks, "doomed")
    return made


def test_every_page_opens_also_for_a_task_that_is_gone(browser: Client, some_runs: dict[str, Any]) -> None:
    for url in ("run/", "attempt/", "worker/", "worker/w-1/change/", "run/?state__exact=FAILED"):
        assert browser.get(f"/admin/manta/{url}").status_code == 200
    for result in some_runs.values():
        page = browser.get(f"/admin/manta/run/{result.id}/change/")
        assert page.status_code == 200
        assert result.id in page.content.decode()
    page = browser.get(f"/admin/manta/run/{some_runs['failed'].id}/change/").content.decode()
    assert "&lt;b&gt;boom&lt;/b&gt;" in page
    token = Attempt.objects.latest("token").pk
    assert browser.get(f"/admin/manta/attempt/{token}/change/").status_code == 200


@pytest.mark.parametrize("term", ["nonsense", "tests.app.tasks.add", "00000000-0000-0000-0000-000000000000", "é\x7f"])
def test_a_search_for_anything_is_answered(browser: Client, some_runs: dict[str, Any], term: str) -> None:
    page = browser.get("/admin/manta/run/", {"q": term})
    assert page.status_code == 200
    found = page.context["cl"].result_list.count()
    assert found == (2 if term == "tests.app.tasks.add" else 0)


def test_a_run_is_found_by_its_id(browser: Client, some_runs: dict[str, Any]) -> None:
    page = browser.get("/admin/manta/run/", {"q": some_runs["ready"].id})
    assert [str(run.pk) for run in page.context["cl"].result_list] == [some_runs["ready"].id]


def test_nothing_can_be_added_changed_or_deleted(browser: Client, some_runs: dict[str, Any]) -> None:
    run = some_runs["ready"].id
    assert browser.get("/admin/manta/run/add/").status_code == 403
    assert browser.post(f"/admin/manta/run/{run}/change/", {"state": "FAILED"}).status_code == 403
    assert browser.post(f"/admin/manta/run/{run}/delete/", {"post": "yes"}).status_code == 403
    assert Run.objects.filter(pk=run).exists()


def test_no_page_counts_the_whole_table(browser: Client, some_runs: dict[str, Any]) -> None:
    for url in ("run/", "attempt/"):
        with CaptureQueriesContext(connection) as queries:
            browser.get(f"/admin/manta/{url}")
        counting = [query["sql"] for query in queries if "COUNT(" in query["sql"].upper() and "manta_" in query["sql"]]
        assert counting == []
