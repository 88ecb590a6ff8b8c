"""
What a worker writes into its row of that which keeps runs from going on: words, by what they are about.

The worker itself ("": it claims nothing), a run that cannot begin (its id), a foreman, the runs of a lost worker, or
the nodes of Ray. ``doctor``, ``health`` and ``explain`` read them.
"""

from collections.abc import Mapping

#: The key of what keeps the worker from claiming.
CLAIMS_NOTHING = ""

#: The key of what Ray could not begin lately.
NODES = "nodes"

_FOREMAN, _LOST = "foreman:", "lost worker:"


def of_foreman(name: str) -> str:
    return _FOREMAN + name


def of_lost_worker(worker: str) -> str:
    return _LOST + worker


def about_runs(troubles: Mapping[str, str]) -> dict[str, str]:
    """What is said of single runs, by their ids."""
    return {key: words for key, words in troubles.items() if key not in ("", NODES) and ":" not in key}


def about_others(troubles: Mapping[str, str]) -> list[str]:
    """What is said of foremen, nodes and lost workers."""
    return [words for key, words in troubles.items() if key == NODES or ":" in key]


def about_foremen(troubles: Mapping[str, str]) -> list[str]:
    return [words for key, words in troubles.items() if key.startswith(_FOREMAN)]
