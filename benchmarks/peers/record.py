"""What was measured, as it is kept: a file that the page can be made from again, and that a later run adds to."""

import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import percentile


@dataclass(slots=True)
class Entry:
    """One contender: what each round gave, or why there is nothing."""

    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""
    reason: str = ""
    #: For each measure one object a round: ``value``, perhaps ``samples``, ``note`` or ``trouble``.
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        self.rounds.setdefault(line["measure"], []).append(
            {name: value for name, value in line.items() if name != "measure"}
        )

    def values(self, measure: str) -> list[float]:
        return [sample["value"] for sample in self.rounds.get(measure, ()) if "value" in sample]

    def median(self, measure: str) -> float | None:
        values = self.values(measure)
        return median(values) if values else None

    def percentile(self, measure: str, share: float) -> float | None:
        """Of the single observations of all rounds together."""
        found = [one for sample in self.rounds.get(measure, ()) for one in sample.get("samples", ())]
        return percentile(found, share) if found else None

    def percentiles(self, measure: str, share: float) -> list[float]:
        """Of the single observations of each round."""
        samples = [sample.get("samples", ()) for sample in self.rounds.get(measure, ())]
        return [percentile(list(found), share) for found in samples if found]

    def notes(self, measure: str) -> list[str]:
        """What must be said about a figure, each thing once."""
        said = [sample.get("note") or sample.get("trouble", "") for sample in self.rounds.get(measure, ())]
        return list(dict.fromkeys(filter(None, said)))

    def conclude(self) -> None:
        """Who gave no figure at all has a reason instead."""
        if not self.reason and not any(self.values(measure) for measure in self.rounds):
            troubles = [words for measure in self.rounds for words in self.troubles(measure)]
            self.reason = (troubles or ["It measured nothing."])[0]

    def troubles(self, measure: str) -> list[str]:
        return [sample["trouble"] for sample in self.rounds.get(measure, ()) if "trouble" in sample]


@dataclass(slots=True)
class Record:
    machine: dict[str, str] = field(default_factory=dict)
    date: str = ""
    sizes: str = "full"
    seconds: float = 0.0
    entries: dict[str, Entry] = field(default_factory=dict)

    def entry(self, name: str) -> Entry:
        return self.entries.setdefault(name, Entry())

    @property
    def rounds(self) -> int:
        """How many there were, of what was measured most often."""
        entries = self.entries.values()
        return max((len(entry.values(measure)) for entry in entries for measure in entry.rounds), default=0)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: an interrupted run keeps what it had.
        beside = path.with_suffix(".new")
        text = json.dumps(asdict(self), indent=1)
        # Single observations on one line each round.
        text = re.sub(r"\[[-\s\d.,e]+\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text)
        beside.write_text(text + "\n")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Record":
        given = json.loads(path.read_text())
        entries = {name: Entry(**entry) for name, entry in given.pop("entries").items()}
        return cls(**given, entries=entries)

    def forget(self, names: list[str], measures: list[str]) -> None:
        """What is about to be measured again. Without measures: all of these contenders."""
        for name in names:
            entry = self.entries.get(name)
            if entry is None:
                continue
            entry.reason = ""
            for measure in measures or list(entry.rounds):
                entry.rounds.pop(measure, None)


def today() -> str:
    return time.strftime("%Y-%m-%d")
