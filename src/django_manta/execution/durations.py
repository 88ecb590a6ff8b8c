"""How long executions take, as far as was seen."""

#: How much a new measurement counts against what was known.
_WEIGHT = 0.2


class Durations:
    """What runs have taken lately: each task, and all together."""

    def __init__(self) -> None:
        self._by_task: dict[str, float] = {}
        self.overall: float | None = None

    def note(self, task: str, seconds: float) -> None:
        self._by_task[task] = _blend(self._by_task.get(task), seconds)
        self.overall = _blend(self.overall, seconds)

    def of(self, task: str) -> float | None:
        return self._by_task.get(task)


def _blend(known: float | None, seconds: float) -> float:
    # Slowness is believed at once, quickness only when it lasts: a window too small costs a
    # round trip, one too large holds runs up.
    if known is None or seconds > known * 4:
        return seconds
    return known + _WEIGHT * (seconds - known)
