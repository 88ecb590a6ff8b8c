"""Async views that enqueue and read, for test_asgi.py."""

from asgiref.sync import sync_to_async
from django.http import HttpRequest, JsonResponse
from django.tasks import default_task_backend
from django.urls import path

from django_manta.testing import run_all
from tests.app.tasks import add_async


async def enqueue(request: HttpRequest, a: int, b: int) -> JsonResponse:
    result = await add_async.aenqueue(a, b)
    return JsonResponse({"id": result.id, "state": result.state})


async def execute_and_read(request: HttpRequest, run_id: str) -> JsonResponse:
    await sync_to_async(run_all, thread_sensitive=True)()
    result = await default_task_backend.aget_result(run_id)
    return JsonResponse({"state": result.state, "value": result.return_value, "attempts": result.attempts})


urlpatterns = [
    path("enqueue/<int:a>/<int:b>/", enqueue),
    path("execute-and-read/<str:run_id>/", execute_and_read),
]
