"""worker, at the door: what its flags mean, and what they cannot mean. What it does is in tests/worker."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.test import override_settings

from django_manta.commands.worker import worker_options
from django_manta.management.commands.manta import Command
from django_manta.worker.dispatch import Tier
from tests.commands.conftest import Done, manta

pytestmark = pytest.mark.django_db(databases=["default", "other"])  # the system checks look at both

MANTA: dict[str, Any] = {"BACKEND": "django_manta.MantaBackend", "QUEUES": ["default", "mail", "slow"]}


def with_backend(**changes: Any) -> override_settings:
    return override_settings(TASKS={"default": {**MANTA, **changes}})


def given(*flags: str) -> Any:
    """What a worker is started with."""
    return worker_options(vars(Command().create_parser("manage.py", "manta").parse_args(["worker", *flags])))


def refusal(*flags: str) -> str:
    with pytest.raises(CommandError) as refused:
        manta("worker", *flags)
    return str(refused.value)


# -- queues ------------------------------------------------------------------------------------------


@with_backend()
def test_queues_are_asked_for_and_excluded_by_name() -> None:
    assert (given().queues, given().exclude_queues) == ((), ())
    assert given("--queues", "mail, slow,mail").queues == ("mail", "slow")
    assert given("--exclude-queues", "mail,slow").exclude_queues == ("mail", "slow")


@with_backend()
@pytest.mark.parametrize("flag", ["--queues", "--exclude-queues"])
def test_a_queue_that_is_not_declared_is_named_together_with_those_that_are(flag: str) -> None:
    told = f"{flag} names 'mial', which is not among the QUEUES of TASKS['default']: default, mail, slow."
    assert refusal(flag, "mail,mial") == told


@with_backend(QUEUES=[])
def test_where_no_queue_is_declared_every_name_is_one() -> None:
    assert given("--queues", "whatever").queues == ("whatever",)
    assert given("--exclude-queues", "whatever").exclude_queues == ("whatever",)


@with_backend()
@pytest.mark.parametrize("flag", ["--queues", "--exclude-queues"])
@pytest.mark.parametrize("value", ["", "mail,"])
def test_an_empty_name_of_a_queue_is_a_mistake(flag: str, value: str) -> None:
    # A variable of the shell that is not set must not mean "all queues".
    assert refusal(flag, value) == f"{flag} was given an empty name."


@with_backend()
def test_a_worker_without_a_queue_is_refused() -> None:
    told = "No queue is left to claim from: --exclude-queues takes away "
    assert refusal("--exclude-queues", "slow,mail,default") == f"{told}default, mail, slow."
    assert refusal("--queues", "mail", "--exclude-queues", "mail,slow") == f"{told}mail."


@with_backend(QUEUES=[])
def test_a_worker_that_excludes_what_it_asked_for_is_refused_also_where_no_queue_is_declared() -> None:
    assert refusal("--queues", "a", "--exclude-queues", "a").startswith("No queue is left to claim from")


@with_backend(OPTIONS={"QUEUE_OPTIONS": {"mail": {"runner": "inline"}}})
def test_a_queue_of_another_runner_cannot_be_asked_for() -> None:
    told = refusal("--queues", "slow,mail")
    assert told.startswith("--queues names 'mail', but QUEUE_OPTIONS gives it to the runner 'inline'")
    assert refusal("--exclude-queues", "default,slow") == (
        "No queue is left to claim from: of mail none has the runner 'processes' in QUEUE_OPTIONS."
    )
    assert given("--exclude-queues", "mail").exclude_queues == ("mail",)


# -- the backend -------------------------------------------------------------------------------------


@override_settings(TASKS={"default": MANTA, "dummy": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}})
def test_a_backend_that_is_not_there_or_not_ours_is_refused() -> None:
    assert refusal("--backend", "NOPE") == (
        "There is no backend 'NOPE' in TASKS. --backend takes one of: default, dummy."
    )
    assert refusal("--backend", "dummy") == (
        "TASKS['dummy'] is a DummyBackend, which has no ledger. Name an alias of django_manta.MantaBackend with "
        "--backend."
    )


@with_backend()
def test_mistakes_are_told_before_the_reloader_starts() -> None:
    assert "names 'nope'" in refusal("--reload", "--queues", "nope")


# -- numbers -----------------------------------------------------------------------------------------


@with_backend(OPTIONS={"PROCESSES": 4, "STOP_TIMEOUT": 7})
def test_flags_win_over_settings() -> None:
    assert (given().processes, given().stop_timeout) == (4, 7.0)
    changed = given("--processes", "3", "--stop-timeout", "0")
    assert (changed.processes, changed.stop_timeout) == (3, 0.0)


@with_backend()
@pytest.mark.parametrize("value", ["-1", "-0.5", "nan", "inf", "soon", "1e9"])
def test_a_stop_timeout_that_is_no_duration_is_refused(value: str) -> None:
    assert f"--stop-timeout: {value!r} is not a number of seconds, 0 or more" in refusal(f"--stop-timeout={value}")


@with_backend()
@pytest.mark.parametrize("flag", ["--processes", "--max-runs"])
@pytest.mark.parametrize("value", ["0", "-1", "2.5", "many", "²"])
def test_a_count_that_is_none_is_refused(flag: str, value: str) -> None:
    assert f"{flag}: {value!r} is not a whole number above 0" in refusal(f"{flag}={value}")


@with_backend(OPTIONS={"PROCESSES": 4})
def test_slots_are_reserved_for_horizons() -> None:
    asked = given("--reserve", "1:30s", "--reserve", "2:1.5h")
    assert asked.reserve == (Tier(1, 30.0), Tier(2, 5400.0))


@with_backend(OPTIONS={"PROCESSES": 2})
def test_a_reserve_that_leaves_no_process_for_the_others_is_refused() -> None:
    told = refusal("--reserve", "1:30s", "--reserve", "1:5m")
    assert told == "--reserve keeps 2 of 2 processes: at least one must be left for every run."


@with_backend()
@pytest.mark.parametrize("value", ["1", "30s", "0:30s", "1:0s", "1:30x", "-1:30s", "1:30 s", ""])
def test_a_reserve_that_is_not_slots_and_horizon_is_refused(value: str) -> None:
    assert f"--reserve: {value!r} is not N:HORIZON, such as 1:30s or 2:4h" in refusal(f"--reserve={value}")


# -- as a person sees it -----------------------------------------------------------------------------


def test_a_mistake_is_a_sentence_and_an_exit_code(run_manta: Callable[..., Done]) -> None:
    done = run_manta("worker", "--burst", "--queues", "nope")
    assert (done.code, done.out) == (1, "")
    assert done.err.strip() == (
        "CommandError: --queues names 'nope', which is not among the QUEUES of TASKS['default']: default, slow, urgent."
    )
    done = run_manta("worker", "--burst", "--stop-timeout", "-1")
    assert (done.code, done.out) == (2, "")
    assert "'-1' is not a number of seconds, 0 or more" in done.err


# -- runners -----------------------------------------------------------------------------------------


def test_without_ray_the_runner_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it were not installed: to import it fails, and nobody finds it.
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal("--runner", "ray") == (
        "The runner 'ray' needs Ray, which is not installed: pip install 'django-manta[ray]'"
    )


def test_a_worker_for_jobs_must_know_where_ray_takes_them() -> None:
    assert refusal("--runner", "ray_job") == (
        "The runner 'ray_job' submits to Ray's dashboard: say where it is, as RAY['DASHBOARD'] in OPTIONS."
    )


def test_nothing_but_the_runner_needs_ray() -> None:
    """What a project without Ray imports: the app, its commands, and a worker with the other runner."""
    modules = "django_manta.worker.loop", "django_manta.commands.worker", "django_manta.commands.doctor"
    script = f"""
import sys
sys.modules["ray"] = None
import django
django.setup()
import {", ".join(modules)}
from django.core.management import call_command
call_command("check")
call_command("manta", "worker", "--help")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, timeout=120)
    assert "usage: " in done.stdout, done.stderr
