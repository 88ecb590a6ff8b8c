"""
The model, and what takes long: to load it. No Django and no tasks in here.

Ray keeps its processes and gives them one run after the other. What a process has loaded once is there for all that
come after: `functools.cache` on a function of a module is enough, there is no actor to write and no pool to keep.
"""

import functools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

WEIGHTS = Path(__file__).resolve().parent / "weights.json"

#: What gigabytes of weights would take, on their way to a GPU.
LOADING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Model:
    """How much a word says for, or against, a place."""

    weights: dict[str, float]

    def score(self, texts: Sequence[str]) -> list[float]:
        """All of a batch at once, as a GPU wants it."""
        return [1 / (1 + math.exp(-sum(self.weights.get(word, 0.0) for word in text.split()))) for text in texts]


@functools.cache
def load() -> Model:
    """The model of this process. `load.cache_info().misses` says how often it was loaded here."""
    time.sleep(LOADING_SECONDS)
    return Model(json.loads(WEIGHTS.read_text()))


def reviews(count: int) -> Iterator[str]:
    """Invented ones, always the same."""
    random = Random("reviews")
    words = sorted(json.loads(WEIGHTS.read_text()))
    for _ in range(count):
        yield " ".join(random.choices(words, k=random.randint(3, 12)))
