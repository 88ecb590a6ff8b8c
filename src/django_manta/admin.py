"""
A read-only admin: what runs, what ran, and why it stands where it stands.

Everything shown comes from the rows, never from the task's code, which may be gone; and nothing
counts a whole table, which may be large.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_manta.models import Attempt, Run, Worker

if TYPE_CHECKING:
    RunAdminBase = admin.ModelAdmin[Run]
    AttemptAdminBase = admin.ModelAdmin[Attempt]
    AttemptInlineBase = admin.TabularInline[Attempt, Run]
    WorkerAdminBase = admin.ModelAdmin[Worker]
    PaginatorBase = Paginator[Any]
else:
    RunAdminBase = AttemptAdminBase = WorkerAdminBase = admin.ModelAdmin
    AttemptInlineBase = admin.TabularInline
    PaginatorBase = Paginator

#: The list of runs pages through this many at most; filters find the rest.
COUNT_LIMIT = 10_000


class BoundedPaginator(PaginatorBase):
    """Counts no further than it must: a table of runs can have millions of rows."""

    @cached_property
    def count(self) -> int:
        queryset: Any = self.object_list
        return len(queryset.order_by().values_list("pk")[:COUNT_LIMIT])


class ReadOnly:
    """People look; the ledger writes."""

    show_full_result_count = False
    paginator: ClassVar[type] = BoundedPaginator
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AttemptInline(ReadOnly, AttemptInlineBase):
    model = Attempt
    extra = 0
    fields = ("number", "outcome", "worker", "started_at", "finished_at", "error_class", "error_message")
    ordering = ("token",)


@admin.register(Run)
class RunAdmin(ReadOnly, RunAdminBase):
    list_display = ("id", "task", "queue", "state", "priority", "attempts", "enqueued_at", "finished_at")
    list_filter = ("state",)
    search_fields = ("id__exact", "task__exact", "queue__exact", "worker__exact")
    search_help_text = _("A run's id, or the exact name of a task, a queue or a worker.")
    ordering = ("-id",)
    inlines = (AttemptInline,)
    fieldsets = (
        (None, {"fields": ("id", "task", "state", "reason", "progress")}),
        (
            _("What was asked"),
            {"fields": ("arguments", "overrides", "metadata", "queue", "priority", "backend")},
        ),
        (
            _("When"),
            {
                "fields": (
                    "enqueued_at",
                    "run_after",
                    "due_at",
                    "deadline",
                    "expires_at",
                    "started_at",
                    "last_attempted_at",
                    "finished_at",
                )
            },
        ),
        (
            _("Who"),
            {"fields": ("worker", "token", "attempts", "failures", "crashes", "losses", "refused_at")},
        ),
        (_("What came of it"), {"fields": ("result_text",)}),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        # A malformed UUID is no error to the person who types it: it finds nothing by id.
        return super().get_search_results(request, queryset, search_term.strip())


@admin.register(Attempt)
class AttemptAdmin(ReadOnly, AttemptAdminBase):
    list_display = (
        "token",
        "run_id",
        "number",
        "outcome",
        "worker",
        "started_at",
        "finished_at",
        "error_class",
    )
    list_filter = ("outcome",)
    search_fields = ("run_id__exact", "error_class__exact", "worker__exact")
    ordering = ("-token",)


@admin.register(Worker)
class WorkerAdmin(ReadOnly, WorkerAdminBase):
    list_display = ("id", "host", "pid", "runner", "queues", "started_at", "seen_at", "lost_at", "stopping")
    ordering = ("-started_at",)
