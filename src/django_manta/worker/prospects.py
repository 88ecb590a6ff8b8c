"""What a worker knows of the runs that are ready, from one claim to the next."""

from dataclasses import dataclass


@dataclass(slots=True)
class Prospects:
    """Whether there is something to claim, and whether others have to hear of it."""

    #: Claim as soon as there is room.
    hungry: bool = True
    #: As far as we know, something is ready: the last claim did not bring all there was, or the bell has rung since.
    more: bool = True
    #: A look saw something that is ready, and nothing was claimed since.
    seen: bool = False
    #: The last claim was not for all that is ready in our queues.
    passed_over: bool = False
    #: Something became ready by our doing, and perhaps in queues that are not ours.
    must_ring: bool = False
    others_concerned: bool = False

    def better(self) -> None:
        """Something may be ready that was not."""
        self.hungry = self.more = True
