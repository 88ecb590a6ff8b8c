"""
The states of a run, the outcomes of an attempt, and the moves between them.

::

                       enqueue
         ┌───────┬────────┴───────┬─────────┐
         ▼       ▼                ▼         ▼
       HELD  SCHEDULED ─due──▶  READY    WAITING (for other runs)
         │       │               │ ▲        │
         └─release──────────────▶│ │◀─ready─┘
                                 │ │
                           claim │ │ returned, interrupted, or a retry that need not wait
                                 ▼ │          (a retry that must wait goes to SCHEDULED)
                               RUNNING ──cancel──▶ CANCELLING
                                 │                     │
        ┌──────────┬─────────┬───┴────────┐            ├─ success ──▶ SUCCESSFUL
        ▼          ▼         ▼            ▼            └─ all else ─▶ CANCELLED
    SUCCESSFUL   FAILED    LOST      QUARANTINED

    Ends reached without running: CANCELLED (cancel), EXPIRED (never started in time),
    UPSTREAM_FAILED (a precondition ended badly).

    Every bad end ──retry by an operator──▶ READY, with a fresh budget.

The database row is authoritative: these tables say which moves are allowed, the statements in
``django_manta/ledger`` make them, and nothing else writes ``state``. Whether a run was told to
cancel is only known when it is settled, so the last two lines of ``after()`` are repeated in the
settling statement; a test holds the two together.
"""

from django.db.models import TextChoices
from django.tasks import TaskResultStatus
from django.utils.translation import pgettext_lazy


class State(TextChoices):
    HELD = "HELD", pgettext_lazy("run state", "held")
    SCHEDULED = "SCHEDULED", pgettext_lazy("run state", "scheduled")
    WAITING = "WAITING", pgettext_lazy("run state", "waiting")
    READY = "READY", pgettext_lazy("run state", "ready")
    RUNNING = "RUNNING", pgettext_lazy("run state", "running")
    CANCELLING = "CANCELLING", pgettext_lazy("run state", "cancelling")
    SUCCESSFUL = "SUCCESSFUL", pgettext_lazy("run state", "successful")
    FAILED = "FAILED", pgettext_lazy("run state", "failed")
    CANCELLED = "CANCELLED", pgettext_lazy("run state", "cancelled")
    LOST = "LOST", pgettext_lazy("run state", "lost")
    EXPIRED = "EXPIRED", pgettext_lazy("run state", "expired")
    QUARANTINED = "QUARANTINED", pgettext_lazy("run state", "quarantined")
    UPSTREAM_FAILED = "UPSTREAM_FAILED", pgettext_lazy("run state", "upstream failed")

    # An enum's own takes five times as long, and these are looked for in sets a dozen times for each run.
    __hash__ = str.__hash__


class When(TextChoices):
    """What must be true of the runs in ``after`` before a run that waits for them is ready."""

    ALL_SUCCESSFUL = "all_successful", pgettext_lazy("when", "all successful")
    ALL_FINISHED = "all_finished", pgettext_lazy("when", "all finished")
    ANY_SUCCESSFUL = "any_successful", pgettext_lazy("when", "any successful")
    ANY_FINISHED = "any_finished", pgettext_lazy("when", "any finished")


class Role(TextChoices):
    """Why a run waits for another: for its value, which needs success, or for its end, as ``when`` says."""

    VALUE = "value", pgettext_lazy("role", "value")
    AFTER = "after", pgettext_lazy("role", "after")
    #: Its value becomes the run's own.
    DELEGATE = "delegate", pgettext_lazy("role", "delegate")


class Outcome(TextChoices):
    SUCCESSFUL = "SUCCESSFUL", pgettext_lazy("attempt outcome", "successful")
    FAILED = "FAILED", pgettext_lazy("attempt outcome", "failed")
    TIMED_OUT = "TIMED_OUT", pgettext_lazy("attempt outcome", "timed out")
    CANCELLED = "CANCELLED", pgettext_lazy("attempt outcome", "cancelled")
    CRASHED = "CRASHED", pgettext_lazy("attempt outcome", "crashed")
    LOST = "LOST", pgettext_lazy("attempt outcome", "lost")
    RETURNED = "RETURNED", pgettext_lazy("attempt outcome", "returned")
    INTERRUPTED = "INTERRUPTED", pgettext_lazy("attempt outcome", "interrupted")
    DEFERRED = "DEFERRED", pgettext_lazy("attempt outcome", "deferred")
    DELEGATED = "DELEGATED", pgettext_lazy("attempt outcome", "delegated")

    __hash__ = str.__hash__


def read_state(stored: str) -> State:
    """
    The state in a row. One that does not exist, written by hand, moves nothing; ``fsck`` names it, and it is shown as
    HELD.
    """
    return State(stored) if stored in _STATES else State.HELD


def read_outcome(stored: str) -> Outcome:
    """For people: an outcome that does not exist is shown as FAILED. ``fsck`` names it."""
    return Outcome(stored) if stored in _OUTCOMES else Outcome.FAILED


def read_when(stored: str) -> When:
    """For people: what does not exist is shown as what gates take it for. ``fsck`` names it."""
    return When(stored) if stored in _WHENS else When.ALL_FINISHED


def read_role(stored: str) -> Role:
    """For people: what does not exist is shown as what gates take it for. ``fsck`` names it."""
    return Role(stored) if stored in _ROLES else Role.VALUE


_STATES, _OUTCOMES, _WHENS, _ROLES = (frozenset(each.values) for each in (State, Outcome, When, Role))

#: A worker owns the run.
OWNED = frozenset({State.RUNNING, State.CANCELLING})

#: Nothing of the run has started; it can be cancelled or held at once.
PENDING = frozenset({State.HELD, State.SCHEDULED, State.WAITING, State.READY})

GOOD_ENDS = frozenset({State.SUCCESSFUL})
BAD_ENDS = frozenset(
    {State.FAILED, State.CANCELLED, State.LOST, State.EXPIRED, State.QUARANTINED, State.UPSTREAM_FAILED}
)
ENDS = GOOD_ENDS | BAD_ENDS

#: Which state may follow which. Everything else is a bug that ``fsck`` or a test must find.
MOVES: dict[State, frozenset[State]] = {
    State.HELD: frozenset(
        {
            State.SCHEDULED,
            State.WAITING,
            State.READY,
            State.CANCELLED,
            State.EXPIRED,
            # A promise is settled though it is held; and a circle is refused.
            State.SUCCESSFUL,
            State.FAILED,
        }
    ),
    State.SCHEDULED: frozenset({State.READY, State.WAITING, State.HELD, State.CANCELLED, State.EXPIRED}),
    State.WAITING: frozenset(
        {
            State.READY,
            State.SCHEDULED,
            State.HELD,
            State.CANCELLED,
            State.EXPIRED,
            # What delegated ends as its delegates do.
            *ENDS,
        }
    ),
    State.READY: frozenset(
        {State.RUNNING, State.HELD, State.WAITING, State.CANCELLED, State.EXPIRED, State.UPSTREAM_FAILED}
    ),
    State.RUNNING: frozenset(
        {
            State.SUCCESSFUL,
            State.FAILED,
            State.LOST,
            State.QUARANTINED,
            State.READY,
            State.SCHEDULED,
            State.WAITING,
            State.CANCELLING,
        }
    ),
    State.CANCELLING: frozenset({State.SUCCESSFUL, State.CANCELLED}),
    State.SUCCESSFUL: frozenset(),
    # What delegated ends as its delegates do, also if they were reopened and ended anew before it was told.
    **{end: frozenset({State.READY, State.WAITING, *ENDS} - {end}) for end in BAD_ENDS},
    State.UPSTREAM_FAILED: frozenset({State.READY, State.WAITING, State.SCHEDULED, *ENDS} - {State.UPSTREAM_FAILED}),
}

#: Where a settled attempt may leave its run, provided nobody asked to cancel it.
AFTER_OUTCOME: dict[Outcome, frozenset[State]] = {
    Outcome.SUCCESSFUL: frozenset({State.SUCCESSFUL}),
    Outcome.FAILED: frozenset({State.FAILED, State.READY, State.SCHEDULED}),
    Outcome.TIMED_OUT: frozenset({State.FAILED, State.READY, State.SCHEDULED}),
    Outcome.CANCELLED: frozenset({State.CANCELLED}),
    Outcome.CRASHED: frozenset({State.QUARANTINED, State.LOST, State.READY, State.SCHEDULED}),
    Outcome.LOST: frozenset({State.LOST, State.READY, State.SCHEDULED}),
    Outcome.RETURNED: frozenset({State.READY, State.SCHEDULED}),
    Outcome.INTERRUPTED: frozenset({State.LOST, State.READY, State.SCHEDULED}),
    Outcome.DEFERRED: frozenset({State.READY, State.SCHEDULED, State.WAITING}),
    Outcome.DELEGATED: frozenset({State.WAITING}),
}

#: Outcomes whose attempt never started user code: they do not count as attempts.
UNSTARTED = frozenset({Outcome.RETURNED})

#: Outcomes after which a run may wait for others.
WAITING_OUTCOMES = frozenset({Outcome.DEFERRED, Outcome.DELEGATED})

#: Outcomes that use up ``max_attempts``.
CHARGED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})

#: A run whose executors died under it this often is quarantined.
CRASHES_TO_QUARANTINE = 3


def may_start_again(max_losses: int, losses: int = 0) -> bool:
    """
    Whether a run may be started once more whose execution began and did not end by itself.

    It vanished with its worker, it crashed, it was interrupted, it died of its company: nobody knows how far it came.
    All who find such an execution ask here. ``losses`` are those that the run is charged with, this one included.
    """
    return max_losses > 0 and losses <= max_losses


def after(state: State, outcome: Outcome, wanted: State) -> State:
    """Where a run in ``state`` stands after ``outcome``, whose executor wanted ``wanted`` next."""
    if state is State.CANCELLING and outcome is not Outcome.SUCCESSFUL:
        return State.CANCELLED
    return wanted


def status_of(state: State) -> TaskResultStatus:
    """The status Django's own Tasks API shows for a state."""
    if state in OWNED:
        return TaskResultStatus.RUNNING
    if state in GOOD_ENDS:
        return TaskResultStatus.SUCCESSFUL
    if state in BAD_ENDS:
        return TaskResultStatus.FAILED
    return TaskResultStatus.READY
