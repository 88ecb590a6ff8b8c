"""The task of promises. Nobody executes it; it gives their rows a name that can be verified."""

from django_manta.typed import task


@task
def kept_from_outside() -> None:
    raise RuntimeError("A promise is settled with resolve() or reject(); nobody executes it.")
