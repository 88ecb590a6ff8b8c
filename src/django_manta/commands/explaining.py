"""
Why is it not running? For every state and cause an answer in a sentence, and what to do about it.

Nothing here prints, and nothing is moved. What others decide (a gate, a worker, a run at the root of it all)
is asked in a few bounded statements.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from django_manta.backend import MantaBackend
from django_manta.commands import workers as leases
from django_manta.commands.looking import COUNTED, STEPS, Answer, Cause, Look, passes_on
from django_manta.commands.printing import duration, moment, runs, shortened
from django_manta.exceptions import BadTaskSignature, TaskNotFound
from django_manta.execution import policy
from django_manta.execution.admission import resolve
from django_manta.ledger import RunRecord, around
from django_manta.ledger.around import Stance
from django_manta.states import BAD_ENDS, ENDS, Outcome, Role, State, When
from django_manta.worker import troubles
from django_manta.workflow.promise import TASK as PROMISE

#: How many preconditions a run has, by role and state; None is the state of one that is gone.
type Counted = dict[tuple[Role, State | None], int]

#: Runs that are named in a sentence, and the length of what others wrote in one.
NAMED, WORDS = 3, 300

#: A scheduled run that is late by so much should have been made ready.
_LATE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A run that an explanation speaks of."""

    id: UUID
    #: The path of its task, or what a promise is called.
    name: str
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer."""

    id: UUID
    #: The path of its task, or what a promise is called.
    name: str
    state: State
    cause: Cause
    sentence: str
    #: What to do; empty if there is nothing to do.
    advice: str = ""
    #: What would be in its way next.
    also: tuple[str, ...] = ()
    #: Those it waits for, or that ended badly, the first of them.
    runs: tuple[Named, ...] = ()
    #: The same answer for the run at the root of it, if that is another one.
    root: "Explanation | None" = None

    @property
    def words(self) -> str:
        return f"{self.sentence} {self.advice}".rstrip()


def explain(backend: MantaBackend, run_id: UUID) -> Explanation | None:
    """Why a run stands where it stands, or None if there is no such run."""
    look = Look(backend)
    told = _told(look, run_id)
    if told is None or not told.runs:
        return told
    root_id = look.root_of(told.runs[0].id, failed=told.state in ENDS)
    if root_id is None:
        far = f"What is at the root of it is more than {STEPS} runs away: `manta graph {run_id}` shows some of the way."
        return replace(told, also=(*told.also, far))
    root = _told(look, root_id)
    # What is in the way of both is said once.
    also = told.also if root is None else tuple(words for words in told.also if root.sentence not in words)
    return replace(told, root=root, also=also)


def _told(look: Look, run_id: UUID) -> Explanation | None:
    """Without the run at the root of it."""
    stances = around.stances(look.ledger, [run_id])
    found = look.ledger.fetch([run_id])
    if not found or not stances:
        return None
    run = found[0]
    answer = _ANSWERS[run.state](look, run, stances[run_id])
    return Explanation(
        id=run.id,
        name=_name(stances[run_id]),
        state=run.state,
        cause=answer.cause,
        sentence=answer.sentence,
        advice=answer.advice,
        also=answer.also,
        runs=tuple(Named(id=each.id, name=_name(each), state=each.state) for each in answer.blamed),
    )


# -- not yet -----------------------------------------------------------------------------------------


def _held(look: Look, run: RunRecord, stance: Stance) -> Answer:
    why = f": {_quoted(run.reason)}" if run.reason and run.reason != "It is held." else "."
    sentence = f"A person keeps it back{why}" if run.reason else "It was enqueued with hold=True and is kept back."
    if run.task == PROMISE:
        given = _given(run, stance)
        return Answer(Cause.HELD, sentence, f"It is a promise: `resolve({given}, value)` settles it all the same.")
    then: tuple[str, ...] = ()
    if stance.gate is not None and _forbids(stance.gate.mode, around.count_preconditions(look.ledger, run.id)):
        blamed = look.blamed(stance, failed=True)
        then = (f"Then it ends UPSTREAM_FAILED, because of {_listed(blamed, len(blamed))}.",)
    elif stance.gate is not None and (blamed := look.blamed(stance, failed=False)):
        then = (f"Then it waits for {_listed(blamed, len(blamed))}.",)
    elif run.due_at is not None and run.due_at > look.now:
        then = (f"Then it is due at {moment(run.due_at)}.",)
    return Answer(Cause.HELD, sentence, f"`manta release {run.id}` lets it go.", then or look.also(run.queue))


def _scheduled(look: Look, run: RunRecord, stance: Stance) -> Answer:
    if run.due_at is None:
        return Answer(Cause.NO_GATE, "It is SCHEDULED and has no date.", "`manta fsck --repair` puts it right.")
    left = (run.due_at - look.now).total_seconds()
    due = f"in {duration(left)}, at {moment(run.due_at)}" if left > 0 else f"since {duration(-left)}"
    also = look.also(run.queue)
    if left < -_LATE_SECONDS:
        alive = any(worker.alive for worker in look.workers)
        advice = "A live worker does so at its next look." if alive else "Start a worker: none is alive."
        return Answer(Cause.OVERDUE, f"It is due {due}, and nobody has made it ready.", advice, also)
    if stance.refused_at is not None:
        return _refused(look, run, stance, f"It is shown to them again {due}.")
    last = run.history[-1] if run.history else None
    if last is not None and last.outcome is Outcome.DEFERRED:
        said = f": {_quoted(run.reason)}" if run.reason else "."
        times = "" if stance.gate is None else f" ({_times(stance.gate.laters)} so far)"
        return Answer(
            Cause.CALLED_AGAIN_LATER, f"It asked to be called again{times}, which is due {due}{said}", also=also
        )
    if last is not None and last.outcome is not Outcome.RETURNED:
        error = f" ({_error(last.error_class, last.error_message)})" if last.error_class else ""
        sentence = f"Attempt {last.number} ended {last.outcome.value}{error}; the next one is due {due}."
        return Answer(Cause.RETRY_LATER, sentence, f"`manta show {run.id}` has the traceback.", also)
    return Answer(Cause.DUE_LATER, f"It was asked to run later: it is due {due}.", also=also)


def _refused(look: Look, run: RunRecord, stance: Stance, then: str) -> Answer:
    last = run.history[-1] if run.history else None
    if last is not None and last.error_class in policy.UNREACHABLE:
        sentence = f"{last.executor or last.worker} gave it back: {_quoted(last.error_message)} {then}"
        advice = "Check that this process has the right database settings, and may connect from where it is."
        return Answer(Cause.DATABASE_UNREACHABLE, sentence, advice, look.also(run.queue))
    refused_at = min(stance.refused_at or look.now, look.now)
    since = policy.refused_since(run.history, refused_at) or refused_at
    until = since + timedelta(seconds=look.backend.config.skew_seconds)
    fails = f"It fails if that goes on until {moment(until)}." if until > look.now else "The next time it fails."
    sentence = f"For {look.ago(since)} workers have given it back, because they cannot vouch for it"
    advice = "Start workers with the code and the SECRET_KEY of whoever enqueued it."
    return Answer(Cause.REFUSED, f"{sentence}: {_quoted(run.reason)} {then} {fails}", advice, look.also(run.queue))


def _waiting(look: Look, run: RunRecord, stance: Stance) -> Answer:
    if run.task == PROMISE:
        return _promise(look, run, stance)
    if stance.gate is None:
        advice = "`manta fsck` says more; `manta cancel` or `manta hold` and `manta release` move it."
        return Answer(Cause.NO_GATE, "It waits for other runs, but nothing says for which.", advice)
    also = look.also(run.queue)
    counted = around.count_preconditions(look.ledger, run.id)
    if not stance.gate.armed:
        total = sum(counted.values())
        sentence = (
            f"It waits for {runs(total)}, and for {look.ago(stance.gate.made_at)} nobody has counted how they stand: "
            "whoever enqueued it is still at it, or died."
        )
        return Answer(Cause.NOT_COUNTED, sentence, _caretaker(look), also)
    wanted = {key: number for key, number in counted.items() if (key[0] is Role.DELEGATE) == stance.delegates}
    open_ones = sum(number for (_, state), number in wanted.items() if state is not None and state not in ENDS)
    gone = sum(number for (_, state), number in wanted.items() if state is None)
    if not open_ones and gone:
        sentence = f"It waits for {runs(gone)} that somebody removed by hand: nobody will ever tell it of their end."
        return Answer(Cause.WAITS_FOR_NOTHING, sentence, "`manta fsck --repair` ends it, or lets it go on without.")
    if not open_ones:
        sentence = "All that it waits for has ended, and nobody has told it yet."
        return Answer(Cause.NOT_TOLD, sentence, _caretaker(look), also)
    blamed = look.blamed(stance, failed=False)
    if stance.delegates:
        sentence = f"It has delegated to {_listed(blamed, open_ones)}."
        return Answer(Cause.DELEGATED, sentence, also=(), blamed=blamed)
    sentence = f"It waits for {_wanted(stance.gate.mode, wanted)}: {_listed(blamed, open_ones)}."
    if stance.gate.laters:
        said = f", saying {_quoted(run.reason, end='')}" if run.reason else ""
        sentence = f"It asked to be called again ({_times(stance.gate.laters)} so far{said}). {sentence}"
    if run.due_at is not None and run.due_at > look.now:
        also = (f"Then it is due at {moment(run.due_at)}.", *also)
    return Answer(Cause.WAITS_FOR_RUNS, sentence, also=also, blamed=blamed)


def _wanted(mode: When, counted: Counted) -> str:
    """What a run still needs of those that it waits for."""
    values, after = (
        {state: number for (role, state), number in counted.items() if (role is Role.AFTER) == is_after}
        for is_after in (False, True)
    )
    missing, open_after = (
        sum(number for state, number in each.items() if state is None or state not in ENDS) for each in (values, after)
    )
    if not open_after:
        return f"{missing} of {runs(sum(values.values()))}"
    if mode in (When.ALL_SUCCESSFUL, When.ALL_FINISHED):
        both = sum(values.values()) + sum(after.values())
        return f"{missing + open_after} of {runs(both)} (when={mode.value})"
    needed = f"the value of {runs(missing)} and " if missing else ""
    return f"{needed}any of {runs(open_after)} more (when={mode.value})"


def _forbids(mode: When, counted: Counted) -> bool:
    """Whether a gate lets its run never pass, as its preconditions have ended."""
    bad = {role for (role, state), number in counted.items() if state is None or state in BAD_ENDS}
    if bad - {Role.AFTER}:
        return True
    after = [state for (role, state), number in counted.items() if role is Role.AFTER]
    if mode is When.ALL_SUCCESSFUL:
        return Role.AFTER in bad
    return mode is When.ANY_SUCCESSFUL and bool(after) and all(state is None or state in BAD_ENDS for state in after)


def _given(run: RunRecord, stance: Stance) -> str:
    return repr(stance.promise if stance.promise is not None else str(run.id))


def _promise(look: Look, run: RunRecord, stance: Stance) -> Answer:
    given = _given(run, stance)
    until = f" It expires at {moment(run.expires_at)}." if run.expires_at is not None else ""
    name = f" {stance.promise!r}" if stance.promise is not None else ""
    sentence = f"It is a promise{name} that nobody has settled for {look.ago(run.enqueued_at)}.{until}"
    return Answer(Cause.PROMISE, sentence, f"Call `resolve({given}, value)` or `reject({given}, reason)`.")


def _caretaker(look: Look) -> str:
    if any(worker.alive for worker in look.workers):
        return "A live worker does so at its next look."
    return "A worker would do so, but none is alive: start one."


# -- ready -------------------------------------------------------------------------------------------


def _ready(look: Look, run: RunRecord, stance: Stance) -> Answer:
    if run.expires_at is not None and run.attempts == 0 and run.expires_at <= look.now:
        sentence = f"It did not start before it expired, at {moment(run.expires_at)}: no worker takes it any more."
        return Answer(Cause.EXPIRED, sentence, "A worker ends it; `manta retry` then gives it another chance.")
    if (obstacle := look.obstacle(run.queue)) is not None:
        return obstacle
    ahead = around.ahead(look.ledger, run, COUNTED)
    if stance.refused_at is not None:
        return _refused(look, run, stance, f"It is ready to be shown to them again, after {_before(ahead)}.")
    claiming = look.claiming(run.queue)
    busy = [worker for worker in claiming if look.running.get(worker.id, 0) >= worker.slots]
    queue = f"There are {_before(ahead)} before it in queue {run.queue!r}."
    if stance.suspect:
        sentence = "It was there when a process or a worker died, so it travels alone: it waits for a process that "
        return Answer(Cause.SUSPECT, f"{sentence}has nothing else to do. {queue}")
    if len(busy) == len(claiming):
        number = "The one live worker" if len(busy) == 1 else f"All {len(busy)} live workers"
        has = sum(look.running.get(worker.id, 0) for worker in busy)
        sentence = f"{number} of its queue {'is' if len(busy) == 1 else 'are'} busy with {runs(has)}. {queue}"
        advice = f"Wait, or start another one: `manage.py manta worker --queues {run.queue}`."
        return Answer(Cause.WORKERS_BUSY, sentence, advice)
    sentence = f"A worker takes it at its next look. {queue}"
    advice = "If none does, they may keep what is free for nearer deadlines (--reserve)."
    return Answer(Cause.NEXT, sentence, advice)


def _before(ahead: int) -> str:
    return f"{ahead}{'+' if ahead >= COUNTED else ''} ready {'run' if ahead == 1 else 'runs'}"


# -- running -----------------------------------------------------------------------------------------


def _running(look: Look, run: RunRecord, stance: Stance) -> Answer:
    worker = next((each for each in look.workers if each.id == run.worker), None)
    if worker is None or worker.lost:
        if (needed := leases.needed(look.backend).get(run.worker)) is not None:
            words, advice = needed
            return Answer(Cause.WORKER_GONE, f"It is one of {words}.", f"{advice}.")
        if (waits := leases.waiting_for_a_foreman(look.workers, run.worker)) is not None:
            return Answer(Cause.WORKER_GONE, f"Worker {run.worker!r} had it and was declared lost. {waits}")
        how = "is gone" if worker is None else "was declared lost"
        alive = any(each.alive for each in look.workers)
        advice = "A live worker recovers it at its next look." if alive else "Start a worker: none is alive."
        return Answer(Cause.WORKER_GONE, f"Worker {run.worker!r} had it and {how}.", advice)
    seen = duration(worker.seen_seconds_ago)
    where = f"({worker.host}, process {worker.pid}, seen {seen} ago)"
    if not worker.alive:
        where += ", which is silent: if it stays so it is declared lost, and the run is recovered"
    trouble = _trouble(worker, run)
    if run.state is State.CANCELLING:
        sentence = f"Somebody asked to cancel it: {_quoted(run.reason)} Worker {worker.id} {where} is to stop it."
        if trouble is not None:
            sentence += f" {trouble}"
        return Answer(Cause.CANCELLING, sentence, "It is CANCELLED when nothing of it runs any more.")
    since = f"Worker {worker.id} has it for {look.ago(run.last_attempted_at)} {where}"
    if trouble is not None:
        return Answer(Cause.WAITS_FOR_RAY, f"{since}. {trouble}", f"`manta cancel {run.id}` takes it back.")
    timeout = _timeout(run)
    if timeout is None:
        return Answer(Cause.RUNNING, f"{since}, without a timeout.", f"`manta cancel {run.id}` stops it.")
    taken = (look.now - (run.last_attempted_at or look.now)).total_seconds()
    if taken > timeout:
        sentence = f"{since}, longer than its timeout of {duration(timeout)}: it is being stopped, or has not begun."
        return Answer(Cause.PAST_TIMEOUT, sentence, f"`manta cancel {run.id}` stops it.")
    return Answer(Cause.RUNNING, f"{since}; its timeout is {duration(timeout)}.", f"`manta cancel {run.id}` stops it.")


def _trouble(worker: leases.Seen, run: RunRecord) -> str | None:
    """What keeps it from going on: what its worker says of it, of itself, or of a foreman that may have it."""
    said = [worker.troubles.get(str(run.id)), worker.obstacle, *troubles.about_foremen(worker.troubles)]
    said.append(worker.troubles.get(troubles.of_lost_worker(worker.id)))
    return next(filter(None, said), None)


def _timeout(run: RunRecord) -> float | None:
    """As the code says that is here, or as it was given to the run."""
    try:
        return resolve(run).options.timeout
    except (BadTaskSignature, TaskNotFound, ValueError, TypeError):
        return None


# -- ended -------------------------------------------------------------------------------------------


def _successful(look: Look, run: RunRecord, stance: Stance) -> Answer:
    through = " through what it delegated to," if stance.delegates else ""
    after = "" if run.started_at is None or run.finished_at is None else f", {_took(run)} after it first started"
    return Answer(Cause.ENDED_WELL, f"It ended well{through} at {_moment(run.finished_at)}{after}.")


def _ended_badly(look: Look, run: RunRecord, stance: Stance) -> Answer:
    ended = f"It ended {run.state.value} at {_moment(run.finished_at)}"
    if passes_on(stance):
        return _ended_for_another(look, run, stance, ended)
    last = run.history[-1] if run.history else None
    error = ""
    if last is not None and last.error_class and last.error_message not in run.reason:
        error = f" Its last attempt ended {last.outcome.value} ({_error(last.error_class, last.error_message)})."
    reason = f": {_quoted(run.reason)}" if run.reason else "."
    advice = f"`manta retry {run.id}` gives it another chance"
    if run.state is State.QUARANTINED:
        advice = f"It kills what executes it. Mend the task; then {advice}"
    elif run.state is State.EXPIRED:
        advice = f"It was in time for nobody: more workers would help. {advice}"
    return Answer(Cause.ENDED_BADLY, f"{ended}{reason}{error}", f"{advice}.")


def _ended_for_another(look: Look, run: RunRecord, stance: Stance, ended: str) -> Answer:
    blamed = look.blamed(stance, failed=True)
    delegated = stance.delegates and run.state is not State.UPSTREAM_FAILED
    cause = Cause.DELEGATE_FAILED if stance.delegates else Cause.UPSTREAM_FAILED
    if not blamed:
        counted = around.count_preconditions(look.ledger, run.id)
        if gone := sum(number for (_, state), number in counted.items() if state is None):
            sentence = f"{ended} because what it needs does not exist any more: {runs(gone)}."
            return Answer(cause, sentence, "Retention or a person removed it: enqueue them anew.")
        return Answer(cause, f"{ended}: {_quoted(run.reason)}", f"`manta retry {run.id}` gives it another chance.")
    because = "what it delegated to ended so" if delegated else "what it needs ended badly"
    root = look.root_of(blamed[0].id, failed=True)
    advice = "" if root is None else f"`manta retry {root}` gives that another chance, and this run with it."
    return Answer(
        cause,
        f"{ended} because {because}: {_listed(blamed, len(blamed))}.",
        advice,
        blamed=blamed,
    )


_ANSWERS: dict[State, Callable[[Look, RunRecord, Stance], Answer]] = {
    State.HELD: _held,
    State.SCHEDULED: _scheduled,
    State.WAITING: _waiting,
    State.READY: _ready,
    State.RUNNING: _running,
    State.CANCELLING: _running,
    State.SUCCESSFUL: _successful,
    **dict.fromkeys(BAD_ENDS, _ended_badly),
}


# -- words -------------------------------------------------------------------------------------------


def _quoted(reason: str, end: str = ".") -> str:
    """What somebody wrote, as the end of a sentence."""
    words = shortened(" ".join(reason.split()), WORDS) or "no reason was given"
    return words if not end or words.endswith((".", "!", "?", "…")) else f"{words}{end}"


def _error(kind: str, message: str) -> str:
    name = kind.rpartition(".")[2]
    words = shortened(" ".join(message.split()), WORDS)
    return f"{name}: {words}" if words else name


def _listed(found: Iterable[Stance], total: int) -> str:
    shown = list(found)[:NAMED]
    named = [f"{_name(each)} {each.id}, which is {each.state.value}" for each in shown]
    more = [f"{total - len(shown)} more"] if total > len(shown) else []
    return "; ".join([*named, *more])


def _name(stance: Stance) -> str:
    if stance.task != PROMISE:
        return stance.task
    return "promise" if stance.promise is None else f"promise {stance.promise!r}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _took(run: RunRecord) -> str:
    assert run.started_at is not None
    assert run.finished_at is not None
    return duration(max(0.0, (run.finished_at - run.started_at).total_seconds()))


def _moment(then: datetime | None) -> str:
    return "a time nobody noted" if then is None else moment(then)
