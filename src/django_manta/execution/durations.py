"""How long executions take, as far as was seen."""

#: How much a new measurement counts against what was known.
_WEIGHT = 0.2

#: What takes so many times as long as was known is slow; and so many times, at the most, does one measurement count.
_SLOW = 4
_MUCH = 16


class Durations:
    """
    What runs have taken lately: each task, and all together.

    Slowness is believed at once, quickness only when it lasts: a window too small costs a round trip, one too large
    holds runs up. Where those behind a slow run are taken back anyway (``steady``), slowness, too, is believed when it
    lasts: the processor may just have been given to somebody else.
    """

    def __init__(self, *, steady: bool = False) -> None:
        self._steady = steady
        self._by_task: dict[str, float] = {}
        self.overall: float | None = None

    def note(self, task: str, seconds: float) -> None:
        self._by_task[task] = self._blend(self._by_task.get(task), seconds)
        self.overall = self._blend(self.overall, seconds)

    def of(self, task: str) -> float | None:
        return self._by_task.get(task)

    def _blend(self, known: float | None, seconds: float) -> float:
        if known is None:
            return seconds
        if self._steady:
            seconds = min(seconds, known * _MUCH)
        elif seconds > known * _SLOW:
            return seconds
        return known + _WEIGHT * (seconds - known)
