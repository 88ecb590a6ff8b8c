"""What checkers are told (tests/typing, scripts/check_typing.py) holds when the program runs."""

import importlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import get_type_hints

import django.tasks
import pytest

import django_manta
from django_manta import Task, TaskContext, TaskResult, task, typed
from django_manta.options import OPTIONS

#: But for what pytest has to say when it takes a database down, which may be during the last test of all.
pytestmark = pytest.mark.filterwarnings("error", "default::pytest.PytestWarning")

#: Keywords that Django's own decorator and ``using()`` take.
DJANGO_DECORATOR = {"priority", "queue_name", "backend"}
DJANGO_USING = DJANGO_DECORATOR | {"run_after"}


@pytest.fixture(scope="module")
def good() -> Iterator[ModuleType]:
    yield importlib.import_module("tests.typing.good")
    # The system checks look at every task that was imported; other tests count theirs.
    del sys.modules["tests.typing.good"]


def test_task_is_django_s_own() -> None:
    assert task is django.tasks.task
    assert django_manta.task is django.tasks.task


@pytest.mark.parametrize("name", ["Task", "TaskResult", "TaskContext"])
def test_our_classes_derive_from_django_s_and_nothing_else(name: str) -> None:
    ours, django_s = getattr(django_manta, name), getattr(django.tasks, name)
    assert ours.__mro__ == (ours, django_s, object)
    assert not hasattr(object.__new__(ours), "__dict__")


def test_the_parameters_of_a_class_are_an_annotation_at_run_time_too() -> None:
    assert Task[[int], str].__origin__ is Task
    assert TaskResult[..., int].__origin__ is TaskResult
    assert TaskContext[[str], int].__origin__ is TaskContext


def test_the_good_examples_can_be_imported(good: ModuleType) -> None:
    tasks = {name: value for name, value in vars(good).items() if isinstance(value, Task)}
    assert tasks
    assert all(type(each) is Task for each in tasks.values())
    assert good.import_rows.max_attempts == 5
    assert good.import_rows.backoff is good.patient


def test_a_task_stays_hashable_and_picklable(good: ModuleType) -> None:
    changed = good.import_rows.using(timeout=7, hold=True)
    assert hash(changed) != hash(good.import_rows)
    assert pickle.loads(pickle.dumps(changed)) == changed


def test_checkers_know_every_keyword_of_the_decorator() -> None:
    ours = {option.name for option in OPTIONS.values() if option.in_decorator}
    assert set(typed.DecoratorKeywords.__annotations__) == ours | DJANGO_DECORATOR


def test_checkers_know_every_keyword_of_using() -> None:
    ours = {option.name for option in OPTIONS.values() if option.in_using}
    assert set(typed.UsingKeywords.__annotations__) == ours | DJANGO_USING


def test_no_keyword_is_required_by_the_types() -> None:
    assert not typed.DecoratorKeywords.__required_keys__
    assert not typed.UsingKeywords.__required_keys__


def test_the_fields_of_our_classes_have_types_that_resolve() -> None:
    for ours in (Task, TaskResult, TaskContext):
        assert get_type_hints(ours)
