"""Options are validated where they are given, with messages that name option and value."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.tasks import task
from django.tasks.exceptions import InvalidTask
from django.test import override_settings

from django_manta import backoff, options
from django_manta.exceptions import TaskTimeout
from django_manta.options import NOT_GIVEN
from tests.app import tasks
from tests.app.tasks import add

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def plain(*args: Any) -> None:
    """A function at module level to decorate."""


async def coroutine() -> None:
    """A coroutine at module level to decorate."""


def wait_a_minute(error: BaseException, result: Any) -> float:
    return 60


class Delays:
    @staticmethod
    def fixed(error: BaseException, result: Any) -> float:
        return 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"max_attempts": 0}, ValueError, "Task option max_attempts must be between 1 and 32767, not 0."),
        ({"max_attempts": "3"}, TypeError, "Task option max_attempts must be a whole number, not '3'."),
        ({"max_attempts": True}, TypeError, "max_attempts must be a whole number, not True"),
        ({"timeout": 1e12}, ValueError, "timeout must be a finite number of seconds above 0 and at most"),
        ({"backoff": Delays.fixed}, TypeError, "backoff must be a function defined at module level"),
        ({"max_losses": -1}, ValueError, "max_losses must be between 0 and 32767, not -1"),
        (
            {"timeout": 0},
            ValueError,
            "timeout must be a finite number of seconds above 0 and at most 100,000,000, not 0",
        ),
        ({"timeout": "5"}, TypeError, "timeout must be seconds, a timedelta or None, not '5'"),
        ({"backoff": "linear"}, ValueError, "backoff 'linear' is unknown"),
        (
            {"backoff": -1},
            ValueError,
            "backoff must be a finite number of seconds, 0 or more and at most 100,000,000, not -1",
        ),
        ({"backoff": lambda e, r: 1}, TypeError, "backoff must be a function defined at module level"),
        ({"retry_on": ValueError}, TypeError, "retry_on must be a list of exception classes"),
        ({"retry_on": [3]}, TypeError, "retry_on must hold exception classes or their dotted paths, not 3"),
        ({"no_retry_on": "ValueError"}, TypeError, "no_retry_on must be a list"),
        ({"expires": 60}, TypeError, "expires must be an aware datetime, or a timedelta"),
        ({"expires": datetime(2030, 1, 1)}, ValueError, "expires must be an aware datetime"),  # noqa: DTZ001
        ({"deadline": None}, TypeError, "deadline must be an aware datetime, or a timedelta"),
        ({"atomic": 1}, TypeError, "atomic must be True or False, not 1"),
        ({"metadata": [1]}, TypeError, "metadata must be a mapping, not [1]"),
        ({"metadata": {"a": object}}, TypeError, "(at metadata['a'])"),
        ({"aliases": "app.old"}, TypeError, "aliases must be a list of dotted paths, not 'app.old'"),
        ({"aliases": ["old"]}, TypeError, "aliases must hold dotted paths"),
        ({"hold": True}, TypeError, "'hold' can only be given to .using()"),
        ({"max_retries": 3}, TypeError, "Unknown task option 'max_retries' (given as 3)."),
        ({"max_attemps": 3}, TypeError, "Did you mean 'max_attempts'?"),
        ({"unique": True}, TypeError, "'unique' (given as True) is not supported by this version"),
        ({"http": {}}, TypeError, "is not supported by this version"),
        ({"redact": []}, TypeError, "is not supported by this version"),
        ({"limits": 3}, TypeError, "is not supported by this version"),
        ({"ray": 3}, TypeError, "Task option ray must be a dict with num_cpus, num_gpus"),
        ({"ray": {"cpus": 1}}, ValueError, "has no 'cpus'. Did you mean 'num_cpus'?"),
        ({"ray": {"num_cpus": -1}}, ValueError, "'num_cpus' must be 0 or more, not -1"),
        ({"ray": {"num_cpus": 1.5}}, ValueError, "'num_cpus' must be a whole number if it is more than 1, not 1.5"),
        ({"ray": {"num_gpus": "2"}}, TypeError, "'num_gpus' must be a number, not '2'"),
        ({"ray": {"memory": 0}}, ValueError, "'memory' must be more than 0 bytes, not 0"),
        ({"ray": {"resources": {"GPU": 1}}}, ValueError, "must not name 'GPU'"),
        ({"ray": {"runtime_env": {"pip": []}}}, TypeError, "'runtime_env' must be a name"),
    ],
)
def test_a_bad_option_is_refused_at_definition(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        task(**given)(plain)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be between"),
        ({"max_attempt": 1}, TypeError, "Did you mean 'max_attempts'?"),
        ({"aliases": ["a.b"]}, TypeError, "'aliases' belongs to @task"),
        ({"unique": True}, TypeError, "is not supported by this version"),
        ({"after": [17]}, TypeError, "after must hold results, groups of results, or ids of runs, not 17"),
        ({"when": "never"}, ValueError, "when must be one of 'all_successful'"),
        ({"priority": 101}, InvalidTask, "priority must be a whole number between -100 and 100."),
        ({"priority": 1.5}, InvalidTask, "priority must be a whole number"),
        ({"queue_name": "nowhere"}, InvalidTask, "Queue 'nowhere' is not valid for backend."),
        ({"run_after": datetime(2030, 1, 1)}, InvalidTask, "run_after must be an aware datetime."),  # noqa: DTZ001
        ({"run_after": 60}, InvalidTask, "run_after must be an aware datetime or a timedelta, not 60."),
    ],
)
def test_using_refuses_what_the_decorator_would(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        add.using(**given)
    assert words in str(caught.value)


def test_a_function_that_no_worker_could_import_is_refused() -> None:
    def nested() -> None: ...

    for function in (nested, lambda: None, any):
        with pytest.raises(InvalidTask, match="defined at a module level"):
            task(function)


def test_an_atomic_coroutine_is_refused() -> None:
    with pytest.raises(InvalidTask, match="atomic=True needs a plain function"):
        task(atomic=True)(coroutine)


def test_options_are_kept_in_one_form() -> None:
    made = task(
        max_attempts=3,
        backoff=timedelta(seconds=5),
        retry_on=[ValueError, "app.errors.Busy", "KeyError"],
        timeout=timedelta(minutes=1),
        expires=timedelta(hours=1),
        deadline=WHEN,
        metadata={"team": ("a", "b")},
    )(plain)
    assert made.backoff == backoff.Fixed(5.0)
    assert made.retry_on == ("builtins.ValueError", "app.errors.Busy", "builtins.KeyError")
    assert made.timeout == 60.0
    assert made.metadata == {"team": ["a", "b"]}
    assert made.atomic is NOT_GIVEN


def test_none_and_not_given_are_different() -> None:
    limited = add.using(timeout=5)
    assert limited.timeout == 5.0
    assert limited.using(priority=None).timeout == 5.0
    assert limited.using(timeout=None).timeout is None
    assert limited.using(timeout=NOT_GIVEN).timeout == 5.0
    assert add.timeout is NOT_GIVEN


def test_a_task_is_hashable_and_picklable_with_any_option() -> None:
    made = add.using(metadata={"a": [1]}, timeout=5, backoff=wait_a_minute, run_after=timedelta(1))
    assert hash(made) == hash(made.using())
    assert pickle.loads(pickle.dumps(made)) == made
    assert {made: 1}[made.using()] == 1


LAYERS = {
    "default": {
        "BACKEND": "django_manta.MantaBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": {
            "TASK_DEFAULTS": {"max_attempts": 2, "max_losses": 7, "timeout": 10},
            "QUEUE_OPTIONS": {"slow": {"max_losses": 6, "timeout": 3600, "runner": "inline"}},
            "TASK_OPTIONS": {"tests.app.tasks.add": {"timeout": 50}},
        },
    }
}


def test_precedence_is_using_decorator_task_queue_defaults_builtin() -> None:
    with override_settings(TASKS=LAYERS):
        config = add.get_backend().config
        assert options.effective(add, config).max_attempts == 2  # TASK_DEFAULTS over built-in
        assert options.effective(add, config).max_losses == 7
        slow = add.using(queue_name="slow")
        assert options.effective(slow, config).max_losses == 6  # queue over TASK_DEFAULTS
        assert options.effective(slow, config).timeout == 50  # TASK_OPTIONS over queue
        assert options.effective(tasks.fail_thrice, config).max_attempts == 3  # decorator over all below
        assert options.effective(tasks.fail_thrice.using(max_attempts=9), config).max_attempts == 9
        assert options.effective(add, config).backoff == backoff.Exponential()  # built-in


def test_an_atomic_task_has_a_timeout_of_its_own_unless_told() -> None:
    config = add.get_backend().config
    assert options.effective(add.using(atomic=True), config).timeout == options.ATOMIC_TIMEOUT
    assert options.effective(add.using(atomic=True, timeout=None), config).timeout is None


def test_overrides_survive_storage() -> None:
    given = add.using(
        max_attempts=4,
        backoff=backoff.exponential(first=1, limit=timedelta(minutes=1)),
        retry_on=[TaskTimeout],
        no_retry_on=[ValueError],
        timeout=2,
        metadata={"not": "stored here"},
        priority=3,
    )
    stored = options.encode_overrides(given)
    assert options.decode_overrides(stored) == {
        "max_attempts": 4,
        "backoff": backoff.Exponential(first=1.0, limit=60.0),
        "retry_on": ("django_manta.exceptions.TaskTimeout",),
        "no_retry_on": ("builtins.ValueError",),
        "timeout": 2.0,
    }
    function = options.encode_overrides(add.using(backoff=wait_a_minute))
    assert options.decode_overrides(function) == {"backoff": wait_a_minute}
    assert options.encode_overrides(add) == ""


def test_documented_delays_are_the_real_delays() -> None:
    doubling = backoff.exponential(first=10, limit=100)
    assert [doubling.delay(failures) for failures in (1, 2, 3, 4, 5, 5000)] == [10, 20, 40, 80, 100, 100]
    for failures, documented in ((1, 10), (3, 40)):
        delay = backoff.next_delay(doubling, failures, ValueError(), None)
        assert delay is not None
        assert documented <= delay <= documented * (1 + backoff.JITTER)
    assert backoff.next_delay(wait_a_minute, 1, ValueError(), None) == 60.0
