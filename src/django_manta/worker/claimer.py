"""
Asks the ledger for as many runs as there is room for, and notes what may be left.

Queues take turns, claims begin behind what was taken before (ledger/marks.py), and what is left somebody else should
hear of.
"""

from collections.abc import Sequence

from django_manta.ledger import Claimed, Ledger, Settleable, Settled, house
from django_manta.ledger.claiming import Along, Wanted, weight_of
from django_manta.ledger.marks import Marks
from django_manta.ringing import DEBOUNCE_SECONDS, UNKNOWN
from django_manta.worker.contact import Contact
from django_manta.worker.dispatch import CLAIM_LIMIT, Appetite
from django_manta.worker.hands import Hands
from django_manta.worker.hosting import Runner
from django_manta.worker.lookout import Lookout
from django_manta.worker.prospects import Prospects
from django_manta.worker.queues import Queues
from django_manta.worker.settling import Moved


class Claimer:
    """See above. How much to ask for says the runner, and how much is allowed what is in hand."""

    def __init__(
        self,
        ledger: Ledger,
        hands: Hands,
        runner: Runner,
        queues: Queues,
        prospects: Prospects,
        lookout: Lookout,
        contact: Contact,
    ) -> None:
        self._ledger = ledger
        self._hands = hands
        self._runner = runner
        self._queues = queues
        self._prospects = prospects
        self._lookout = lookout
        self._contact = contact
        self._marks = Marks()
        #: How many claims there have been.
        self._turn = 0
        #: How many runs to ask for at the most. After a claim that the weight of arguments has cut short few, so as not
        #: to lock what cannot be taken; and twice as many each time that this was not too many.
        self._most = CLAIM_LIMIT

    @property
    def is_dear(self) -> bool:
        """Whether it takes long to find something."""
        return self._marks.are_dear(self._queues.names)

    @property
    def looks_itself(self) -> bool:
        """What is ready it finds by itself, in its time: it takes long, and that moment is known."""
        return self._marks.look_at is not None and self.is_dear

    # -- a claim by itself -----------------------------------------------------------------------

    def fetch(self, claims: list[Claimed], now: float) -> bool:
        """
        Claim what there is room for. Whether the ledger was asked at all. Until ``claims`` are taken on, it may know of
        them and we do not.
        """
        wanted = self._runner.appetite(self._queues.names, now)
        if not wanted:
            return False
        asked = False
        room = self._hands.room
        self._prospects.hungry = False
        self._prospects.passed_over = not _is_all(wanted, self._queues.names)
        for want in wanted:
            ask = self._ask(want, len(claims), room)
            if ask is None:
                self._prospects.passed_over = True
                continue
            asked = True
            found = self._ledger.claim(
                *ask[:3], horizon=ask.horizon, not_tasks=ask.not_tasks, marks=self._marks, budget=ask.budget
            )
            claims += found
            self._note(ask, found)
            if len(wanted) > 1:
                room -= weight_of(found)
        self._plan()
        return asked

    def _ask(self, want: Appetite, claimed: int, room: int) -> Wanted | None:
        """
        What to ask the ledger for, after so many were claimed, while there is room for so many bytes of arguments; None
        if nothing.
        """
        limit = min(want.limit, self._most)
        allowance = self._hands.allowance
        if allowance is not None:
            limit = min(limit, allowance - claimed)
        if limit < 1 or room < 1 or not want.queues:
            return None
        # Each time another queue is the first to be served: where there is room for one run only, it is its turn.
        self._turn += 1
        first = self._turn % len(want.queues)
        turns = [*want.queues[first:], *want.queues[:first]]
        return Wanted(self._hands.id, turns, limit, want.horizon, want.not_tasks, budget=room)

    def _note(self, ask: Wanted, found: Sequence[Claimed]) -> None:
        """What a claim brought says about the next one."""
        was_cut = ask.is_outweighed_by(found)
        if was_cut:
            self._most = 2 * len(found)
        elif self._most < CLAIM_LIMIT:
            self._most = min(2 * self._most, CLAIM_LIMIT)
        if was_cut or len(found) >= ask.limit:
            self._prospects.hungry = True
        elif self._marks.look_at is not None:
            # Something may be there all the same, where it takes long to look.
            self._lookout.again(self._marks.look_at)

    def _plan(self) -> None:
        """After a claim: what may be left."""
        self._hands.settler.busy = self._prospects.hungry
        self._prospects.more = self._prospects.hungry or self._prospects.passed_over

    # -- a claim along with a settlement ---------------------------------------------------------

    def settle_and_claim(self, now: float) -> tuple[list[Moved], list[Claimed] | None]:
        """
        Settle what is due, and where that can be done claim what became ready by it, in the same transaction. What
        moved, and what was claimed; None if no claim was made.
        """
        settler, worker = self._hands.settler, self._hands.id
        if self._hands.allowance is not None or self.is_dear:
            # How many may be claimed at the end of --max-runs is known only when these are settled. And where it takes
            # long to find something, nobody should wait for that who waits for the end of a run.
            return settler.flush(self._ledger, now), None
        along: Along | None = None
        passed_over = False

        def settle(settlements: list[Settleable]) -> Settled | None:
            nonlocal along, passed_over
            wanted = self._runner.appetite(self._queues.names, now)
            room = self._hands.room // max(1, len(wanted))
            asks = [ask for want in wanted if (ask := self._ask(want, 0, room)) is not None]
            along = Along.of(asks, self._marks)
            passed_over = len(asks) < len(wanted) or not _is_all(wanted, self._queues.names)
            if along is None:
                return None
            return self._ledger.settle_and_claim(settlements, worker, along, self._marks)

        try:
            moved = settler.flush(self._ledger, now, settle)
        finally:
            if along is not None and along.is_open:
                # What was claimed is not ours, as far as we know.
                self._prospects.better()
                self._contact.must_reconcile = True
        if along is None or along.claims is None or settler.claims is None:
            return moved, None
        self._prospects.hungry, self._prospects.passed_over = False, passed_over
        for ask, found in zip(along.wanted, along.claims, strict=True):
            self._note(ask, found)
        self._plan()
        return moved, settler.claims

    # -- for others ------------------------------------------------------------------------------

    def ring(self, cluster: str, now: float) -> None:
        """
        Wake who has room for what became ready; unless we have just claimed all of it, as each step of a chain: a ring
        costs as much as a claim, and wakes ourselves as well.
        """
        prospects = self._prospects
        prospects.must_ring = False
        others, prospects.others_concerned = prospects.others_concerned, False
        if prospects.hungry or prospects.passed_over or others:
            # Whoever has room for it shall not wait for the next look.
            house.ring(self._ledger, house.channel_of(cluster), UNKNOWN)
        else:
            # A row that somebody held was passed over.
            self._lookout.again_unless_planned(now + DEBOUNCE_SECONDS)


def _is_all(wanted: Sequence[Appetite], queues: Sequence[str]) -> bool:
    """Whether a claim would leave nothing of these queues that is ready, if it is not filled."""
    plain = [want for want in wanted if want.horizon is None and not want.not_tasks]
    return set(queues) <= {queue for want in plain for queue in want.queues}
