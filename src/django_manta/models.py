"""
The tables. Rows are moved by the ledger's statements; the models are for reading and for migrations.

No foreign-key constraint is enforced by the database between them: each would cost a row lock on
the hot path. ``fsck`` checks what the constraints would have.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_manta.column_types import ColumnTypes
from django_manta.ids import new_run_id
from django_manta.states import BAD_ENDS, ENDS, OWNED, PENDING, Outcome, Role, State, When

if TYPE_CHECKING:
    from django_manta.result import TaskResult


class LedgerOwned(TypeError):
    """Somebody other than the ledger tried to write a run."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} would move runs behind the ledger's back. Use the result's cancel() and retry(), or the "
            "methods of django_manta.ledger.Ledger."
        )


class RunQuerySet(models.QuerySet["Run"]):
    """Runs in the words of the project. To move one, ask the ledger: ``update()`` refuses."""

    def held(self) -> "RunQuerySet":
        return self.filter(state=State.HELD)

    def scheduled(self) -> "RunQuerySet":
        return self.filter(state=State.SCHEDULED)

    def waiting(self) -> "RunQuerySet":
        return self.filter(state=State.WAITING)

    def ready(self) -> "RunQuerySet":
        return self.filter(state=State.READY)

    def running(self) -> "RunQuerySet":
        """Owned by a worker, whether or not somebody asked to cancel them."""
        return self.filter(state__in=OWNED)

    def pending(self) -> "RunQuerySet":
        """Not started: held, scheduled, waiting or ready."""
        return self.filter(state__in=PENDING)

    def finished(self) -> "RunQuerySet":
        return self.filter(state__in=ENDS)

    def successful(self) -> "RunQuerySet":
        return self.filter(state=State.SUCCESSFUL)

    def failed(self) -> "RunQuerySet":
        """Every bad end, as Django's status FAILED means it."""
        return self.filter(state__in=BAD_ENDS)

    def cancelled(self) -> "RunQuerySet":
        return self.filter(state=State.CANCELLED)

    def lost(self) -> "RunQuerySet":
        return self.filter(state=State.LOST)

    def expired(self) -> "RunQuerySet":
        return self.filter(state=State.EXPIRED)

    def quarantined(self) -> "RunQuerySet":
        return self.filter(state=State.QUARANTINED)

    def update(self, **values: Any) -> NoReturn:
        raise LedgerOwned(f"Run.objects.update({', '.join(values)})")

    def bulk_update(self, objs: Any, fields: Iterable[str], batch_size: int | None = None) -> NoReturn:
        raise LedgerOwned("Run.objects.bulk_update()")


class Run(models.Model):
    """One enqueued call of a task: what was asked, and where it stands now."""

    id = models.UUIDField(_("id"), primary_key=True, default=new_run_id, editable=False)

    # What was asked. Signed: id, task, arguments, references, overrides.
    task = models.TextField(_("task"), help_text=_("Dotted path of the task."))
    backend = models.TextField(_("backend"), help_text=_("Alias in TASKS."))
    queue = models.TextField(_("queue"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    arguments = models.TextField(_("arguments"), help_text=_("JSON text, exactly as encoded."))
    references_text = models.TextField(
        _("references"),
        db_column="refs",
        null=True,
        help_text=_("Where in the arguments the results of which runs are filled in, as JSON text."),
    )
    overrides = models.TextField(_("overrides"), db_default="", help_text=_("Options given by using(), as JSON text."))
    signature = models.TextField(_("signature"), db_default="")
    run_after = models.DateTimeField(_("run after"), null=True)
    deadline = models.DateTimeField(_("deadline"))
    expires_at = models.DateTimeField(_("expires at"), null=True)
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())

    # Where it stands.
    state = models.TextField(_("state"), choices=State.choices)
    reason = models.TextField(_("reason"), db_default="", help_text=_("Why it stands where it stands."))
    due_at = models.DateTimeField(_("due at"), null=True, help_text=_("What a scheduled run waits for."))
    started_at = models.DateTimeField(_("started at"), null=True)
    last_attempted_at = models.DateTimeField(_("last attempted at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    refused_at = models.DateTimeField(
        _("refused at"), null=True, help_text=_("Since when workers give it back unverified.")
    )
    worker = models.TextField(_("worker"), db_default="", help_text=_("Whose it is now."))
    token = models.BigIntegerField(_("token"), null=True, help_text=_("Names the execution."))
    attempts = models.IntegerField(_("attempts"), db_default=0)
    failures = models.IntegerField(_("failures"), db_default=0)
    crashes = models.IntegerField(_("crashes"), db_default=0)
    losses = models.IntegerField(_("losses"), db_default=0)
    suspect = models.BooleanField(
        _("suspect"), db_default=False, help_text=_("It was there when an executor died: it travels alone.")
    )

    dependents = models.BooleanField(
        _("dependents"), db_default=False, help_text=_("Other runs wait, or waited, for it.")
    )

    # What came of it.
    result_text = models.TextField(
        _("result"), db_column="result", null=True, help_text=_("JSON text, exactly as encoded.")
    )
    result_signature = models.TextField(_("result signature"), db_default="")
    delegate = models.TextField(
        _("delegate"), null=True, help_text=_("The run, or runs, whose results are its own, as JSON text.")
    )
    workflow = models.ForeignKey(
        "Workflow",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="runs",
        verbose_name=_("workflow"),
    )
    metadata = models.JSONField(_("metadata"), default=dict)
    progress = models.JSONField(_("progress"), null=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        default_manager_name = "objects"
        base_manager_name = "objects"
        constraints = [ColumnTypes(name="manta_run_types")]
        indexes = [
            # The claim's one index read. Scheduled and waiting runs are not in it.
            models.Index(
                "queue",
                models.F("priority").desc(),
                "deadline",
                "id",
                name="manta_run_ready",
                condition=models.Q(state="READY"),
            ),
            models.Index("due_at", name="manta_run_scheduled", condition=models.Q(state="SCHEDULED")),
            models.Index(
                "expires_at",
                name="manta_run_expiring",
                condition=models.Q(
                    expires_at__isnull=False,
                    attempts=0,
                    state__in=["HELD", "SCHEDULED", "WAITING", "READY"],
                ),
            ),
            models.Index("worker", name="manta_run_owned", condition=models.Q(state__in=["RUNNING", "CANCELLING"])),
            # Asked for once a second. In the one above are also the entries of all that a worker did lately.
            models.Index("worker", name="manta_run_cancelling", condition=models.Q(state="CANCELLING")),
            # Retention reads one state oldest first; so does a person looking for what failed.
            models.Index(
                "state",
                "finished_at",
                "id",
                name="manta_run_finished",
                condition=models.Q(finished_at__isnull=False),
            ),
            models.Index("workflow", name="manta_run_workflow", condition=models.Q(workflow__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"

    @property
    def result(self) -> "TaskResult":
        """The run as Django's Tasks API shows it."""
        from django_manta.result import get_result

        return get_result(self.id, using=self._state.db)

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise LedgerOwned("Run.save()")
        super().save(*args, **kwargs)


class Attempt(models.Model):
    """
    One try at a run. Append-only, written when the try ends.

    The token of the execution is the primary key: that an execution is settled at most once is
    not only a rule of the ledger but a constraint of the database.
    """

    token = models.BigAutoField(_("token"), primary_key=True)
    run = models.ForeignKey(
        Run,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="history",
        verbose_name=_("run"),
    )
    number = models.IntegerField(_("number"))
    outcome = models.TextField(_("outcome"), choices=Outcome.choices)
    worker = models.TextField(_("worker"), db_default="")
    executor = models.TextField(_("executor"), db_default="")
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"))
    error_class = models.TextField(_("error class"), db_default="")
    error_message = models.TextField(_("error message"), db_default="")
    traceback = models.TextField(_("traceback"), db_default="")
    output = models.TextField(_("output"), db_default="", help_text=_("The tail of what it printed."))
    log_ref = models.TextField(_("log reference"), db_default="")
    peak_memory = models.BigIntegerField(_("peak memory"), null=True, help_text=_("In bytes."))

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = [ColumnTypes(name="manta_attempt_types")]
        indexes = [models.Index("run", name="manta_attempt_run")]

    def __str__(self) -> str:
        return f"{self.run_id} #{self.number} {self.outcome}"


class Dependency(models.Model):
    """An edge: ``run`` waits for ``on``, for its value or just for its end."""

    id = models.BigAutoField(_("id"), primary_key=True)
    run = models.ForeignKey(
        Run,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="preconditions",
        verbose_name=_("run"),
    )
    on = models.ForeignKey(
        Run,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="dependencies",
        verbose_name=_("on"),
    )
    role = models.TextField(_("role"), choices=Role.choices)
    told = models.BooleanField(_("told"), db_default=False, help_text=_("The gate has counted that it ended."))
    met = models.BooleanField(_("met"), db_default=False, help_text=_("The gate has counted that it succeeded."))
    called = models.BooleanField(_("called"), db_default=False, help_text=_("The run was made ready for its end."))

    class Meta:
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        constraints = [
            models.UniqueConstraint(fields=["run", "on", "role"], name="manta_dependency_edge"),
            ColumnTypes(name="manta_dependency_types"),
        ]
        indexes = [models.Index("on", "told", "met", name="manta_dependency_on")]

    def __str__(self) -> str:
        return f"{self.run_id} after {self.on_id}"


class Gate(models.Model):
    """What a run that waits for others waits for, counted. ``fsck`` compares it with the edges."""

    run = models.OneToOneField(
        Run,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        primary_key=True,
        related_name="gate",
        verbose_name=_("run"),
    )
    mode = models.TextField(_("when"), choices=When.choices, db_default=When.ALL_SUCCESSFUL.value)
    armed = models.BooleanField(_("armed"), db_default=False)
    #: Called again at once, whatever it still waits for (``Later(after=None)``).
    passed = models.BooleanField(_("passed"), db_default=False)
    pending_values = models.IntegerField(_("pending values"), db_default=0)
    bad_values = models.IntegerField(_("bad values"), db_default=0)
    pending_after = models.IntegerField(_("pending"), db_default=0)
    met_after = models.IntegerField(_("met"), db_default=0)
    bad_after = models.IntegerField(_("bad"), db_default=0)
    #: How many of the preconditions that have been met, or have ended, the run was made ready for, with any_….
    consumed = models.IntegerField(_("consumed"), db_default=0)
    laters = models.IntegerField(_("laters"), db_default=0, help_text=_("How often it asked to be called again."))
    made_at = models.DateTimeField(_("made at"), db_default=Now())

    class Meta:
        verbose_name = _("gate")
        verbose_name_plural = _("gates")
        constraints = [ColumnTypes(name="manta_gate_types")]
        indexes = [models.Index("made_at", name="manta_gate_unarmed", condition=models.Q(armed=False))]

    def __str__(self) -> str:
        return f"gate of {self.run_id}"


class Herald(models.Model):
    """A run that ended, or was reopened, and whose dependents are still to be told."""

    run = models.OneToOneField(
        Run, on_delete=models.DO_NOTHING, db_constraint=False, primary_key=True, related_name="+", verbose_name=_("run")
    )

    class Meta:
        verbose_name = _("herald")
        verbose_name_plural = _("heralds")
        constraints = [ColumnTypes(name="manta_herald_types")]

    def __str__(self) -> str:
        return f"herald of {self.run_id}"


class Promise(models.Model):
    """The name of a run that is settled from outside. Unique while it is open."""

    run = models.OneToOneField(
        Run,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        primary_key=True,
        related_name="promise",
        verbose_name=_("run"),
    )
    name = models.TextField(_("name"))
    open = models.BooleanField(_("open"), db_default=True)

    class Meta:
        verbose_name = _("promise")
        verbose_name_plural = _("promises")
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=models.Q(open=True), name="manta_promise_name"),
            ColumnTypes(name="manta_promise_types"),
        ]

    def __str__(self) -> str:
        return self.name


class Workflow(models.Model):
    """A graph that has a name."""

    id = models.UUIDField(_("id"), primary_key=True, default=new_run_id, editable=False)
    name = models.TextField(_("name"))
    unique_key = models.TextField(_("unique key"), null=True)
    created_at = models.DateTimeField(_("created at"), db_default=Now())

    class Meta:
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        constraints = [
            models.UniqueConstraint(
                fields=["name", "unique_key"], condition=models.Q(unique_key__isnull=False), name="manta_workflow_key"
            ),
            ColumnTypes(name="manta_workflow_types"),
        ]

    def __str__(self) -> str:
        return self.name


class Worker(models.Model):
    """A worker's lease: its runs are its own as long as this is not marked lost."""

    id = models.TextField(_("id"), primary_key=True)
    name = models.TextField(_("name"))
    host = models.TextField(_("host"))
    pid = models.IntegerField(_("process id"))
    version = models.TextField(_("version"))
    cluster = models.TextField(_("cluster"))
    queues = models.JSONField(_("queues"), default=list)
    runner = models.TextField(_("runner"))
    lease_seconds = models.FloatField(_("lease seconds"), db_default=30.0)
    slots = models.PositiveIntegerField(_("slots"), db_default=1)
    started_at = models.DateTimeField(_("started at"))
    seen_at = models.DateTimeField(_("seen at"))
    lost_at = models.DateTimeField(_("lost at"), null=True)
    stopping = models.BooleanField(_("stopping"), db_default=False)
    foremen = models.TextField(
        _("foremen"),
        db_default="[]",
        help_text=_("To whom it may have given runs on Ray: names and incarnations, as JSON text."),
    )
    ray = models.TextField(
        _("Ray"), db_default="", help_text=_("The Ray that it gives runs to: its session, and the namespace there.")
    )
    ray_address = models.TextField(
        _("address of Ray"), db_default="", help_text=_("Where the settings say that this Ray is, and the namespace.")
    )
    troubles = models.TextField(
        _("troubles"),
        db_default="{}",
        help_text=_("What keeps its runs from being executed, in its own words: all of them, or some, as JSON text."),
    )

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        constraints = [ColumnTypes(name="manta_worker_types")]

    def __str__(self) -> str:
        return self.id


class Queue(models.Model):
    """What operators said about a queue. Queues nobody spoke of have no row."""

    name = models.TextField(_("name"), primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True)

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        constraints = [ColumnTypes(name="manta_queue_types")]

    def __str__(self) -> str:
        return self.name


class Cluster(models.Model):
    """What the processes of a cluster must agree on."""

    name = models.TextField(_("name"), primary_key=True)
    key_fingerprint = models.TextField(_("key fingerprint"))
    leader = models.TextField(_("leader"), db_default="", help_text=_("The worker that does what only one should do."))
    term = models.BigIntegerField(_("term"), db_default=0)

    class Meta:
        verbose_name = _("cluster")
        verbose_name_plural = _("clusters")
        constraints = [ColumnTypes(name="manta_cluster_types")]

    def __str__(self) -> str:
        return self.name
