"""Whether a run that asks for resources can be executed anywhere on a cluster."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: What Ray calls that which a task asks for by a keyword.
_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


class Node(NamedTuple):
    """What a node has, and how it is labelled."""

    resources: Mapping[str, float]
    labels: Mapping[str, str] = {}


def prospect(options: Mapping[str, Any], nodes: Sequence[Node]) -> tuple[bool, str]:
    """Whether one of the nodes could execute it once it has nothing else to do; in words."""
    wanted = {_NAMES[name]: float(options[name]) for name in _NAMES if options.get(name)}
    wanted |= {name: float(amount) for name, amount in options.get("resources", {}).items() if amount}
    kind = options.get("accelerator_type")
    if kind is not None:
        # As Ray does: a node that has such a GPU says so by a resource.
        wanted[f"accelerator_type:{kind}"] = 0.001
    selector: Mapping[str, str] = options.get("label_selector") or {}
    labelled = [node for node in nodes if all(_matches(node.labels.get(name), selector[name]) for name in selector)]
    if any(all(node.resources.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in labelled):
        labels = " with such labels" if selector else ""
        return True, f"It waits until a node of Ray's{labels} has room for it."
    if not labelled:
        asked = ", ".join(f"{name}: {value}" for name, value in selector.items())
        return False, f"None of Ray's nodes ({len(nodes)}) has the labels that it asks for, {asked}."
    asked = ", ".join(f"{name}: {amount:g}" for name, amount in wanted.items())
    most = ", ".join(
        f"{name}: {max((node.resources.get(name, 0.0) for node in labelled), default=0.0):g}" for name in wanted
    )
    which = f"{len(labelled)} with such labels" if selector else f"{len(nodes)}"
    return False, f"None of Ray's nodes ({which}) has what it asks for, {asked}. The most that one has is {most}."


def _matches(label: str | None, wanted: str) -> bool:
    """As Ray reads it: a value, ``in(a, b)``, or either after ``!``."""
    if wanted.startswith("!"):
        return not _matches(label, wanted[1:])
    if wanted.startswith("in(") and wanted.endswith(")"):
        return label in [value.strip() for value in wanted[3:-1].split(",")]
    return label == wanted
