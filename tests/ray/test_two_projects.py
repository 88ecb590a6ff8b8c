"""Two projects that use one Ray, with the defaults for all that names a cluster there."""

import os
from typing import Any

import psutil
from django.conf import settings

from django_manta import State, conf
from django_manta.execution.runners.ray import messages
from django_manta.models import Worker
from django_manta.worker.afar import _name_of_foreman
from tests.app import tasks
from tests.ray.clusters import SLOW_SECONDS
from tests.ray.projects import load_one_and_then_another
from tests.worker.conftest import Start, WorkerProcess, ended, wait_for

HERE = {"settings": "tests.settings", "path": ["/srv/app"]}


def test_each_run_is_executed_with_the_settings_of_its_own_project(start_worker: Start, cluster: Any) -> None:
    def start(queue: str, module: str) -> WorkerProcess:
        return start_worker(
            "--runner",
            "ray",
            "--queues",
            queue,
            environment={"DJANGO_SETTINGS_MODULE": module},
            QUEUE_OPTIONS={queue: {"runner": "ray"}},
            RAY={"ADDRESS": cluster.address},
        )

    projects = {"default": "tests.settings", "urgent": "tests.settings_beside"}
    workers = [start(queue, module).ready() for queue, module in projects.items()]
    for round_ in range(3):
        for queue, module in projects.items():
            # One at a time first, so that processes have been used by the other project when the next one comes.
            runs = [tasks.name_settings.using(queue_name=queue).enqueue() for _ in range(1 + 2 * round_)]
            ended(*runs, limit=SLOW_SECONDS, worker=workers[0])
            assert {(run.state, run.return_value) for run in runs} == {(State.SUCCESSFUL, module)}
    assert len(set(Worker.objects.values_list("foremen", flat=True))) == 2


def test_a_foreman_belongs_to_a_project_and_its_name_does_not_tell_the_key() -> None:
    def name(environment: dict[str, Any] = HERE, fingerprint: str = "f1", database: str = "one", **ray: Any) -> str:
        environments = {"ours": {"env_vars": {"DATABASE_URL": database}}}
        config = conf.read("default", {"RAY": {"RUNTIME_ENV": "ours"} | ray, "RUNTIME_ENVS": environments})
        return _name_of_foreman(config, environment, fingerprint)

    assert name() == name(dict(HERE))
    others = [
        name(HERE | {"settings": "project.settings"}),
        name(HERE | {"path": ["/srv/app/releases/18"]}),
        name(fingerprint="f2"),
        name(database="two"),
        name(VERSION="2"),
    ]
    assert len({name(), *others}) == 6
    assert name().startswith(f"manta:default:0:{messages.PROTOCOL}:tests.settings:")
    assert settings.SECRET_KEY not in name(fingerprint=settings.SECRET_KEY)


def test_a_process_that_has_loaded_one_project_refuses_another_and_ends(cluster: Any) -> None:
    import ray

    one = {"settings": "tests.settings", "path": [os.path.abspath(".")]}  # noqa: PTH100
    ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
    try:
        remote = ray.remote(max_retries=0)(load_one_and_then_another)
        pid, words = ray.get(remote.remote(one, one | {"settings": "tests.settings_beside"}))
        assert "has loaded tests.settings from" in words
        assert "cannot load tests.settings_beside" in words
        wait_for(lambda: not psutil.pid_exists(pid), 30)
    finally:
        ray.shutdown()
