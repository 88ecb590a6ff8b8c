"""
Durable background tasks and workflows for Django: your database remembers.

What is named here, and in ``django_manta.exceptions``, ``django_manta.signals``, ``django_manta.logs`` and
``django_manta.testing``, is public; everything else may change without notice.
"""

from django_manta.backend import MantaBackend
from django_manta.backoff import exponential
from django_manta.context import TaskContext
from django_manta.result import Progress, TaskResult
from django_manta.states import Outcome, State, When
from django_manta.task import Task

# After the submodule `task`, whose import binds that name in this package: `django_manta.task` is
# the decorator, as in `django.tasks`.
from django_manta.typed import task
from django_manta.workflow.flow import WorkflowExists, workflow
from django_manta.workflow.group import Group, gather, value_of
from django_manta.workflow.later import Later
from django_manta.workflow.promise import get_promise, promise, reject, resolve
from django_manta.workflow.ranges import map_queryset

__version__ = "0.1.0"

__all__ = [
    "Group",
    "Later",
    "MantaBackend",
    "Outcome",
    "Progress",
    "State",
    "Task",
    "TaskContext",
    "TaskResult",
    "When",
    "WorkflowExists",
    "exponential",
    "gather",
    "get_promise",
    "map_queryset",
    "promise",
    "reject",
    "resolve",
    "task",
    "value_of",
    "workflow",
]
