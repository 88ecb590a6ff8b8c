"""The no-op of ``benchmarks.tasks`` for django-tasks-db: its project knows nothing of ours."""

from django.tasks import task


@task
def resize(image: str, width: int, height: int, *, quality: int = 80) -> dict[str, int]:
    return {"width": width, "height": height}
