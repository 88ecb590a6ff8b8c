"""Whether a run that asks for resources can be executed anywhere on a cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

#: What Ray calls that which a task asks for by a keyword.
_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


def prospect(options: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> tuple[bool, str]:
    """Whether one of the nodes, by their resources, could execute it once it has nothing else to do; in words."""
    wanted = {_NAMES[name]: float(options[name]) for name in _NAMES if options.get(name)}
    wanted |= {name: float(amount) for name, amount in options.get("resources", {}).items() if amount}
    kind = options.get("accelerator_type")
    if kind is not None:
        # As Ray does: a node that has such a GPU says so by a resource.
        wanted[f"accelerator_type:{kind}"] = 0.001
    if any(all(node.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in nodes):
        labels = " with such labels" if options.get("label_selector") else ""
        return True, f"It waits until a node of Ray's{labels} has room for it."
    asked = ", ".join(f"{name}: {amount:g}" for name, amount in wanted.items())
    most = ", ".join(f"{name}: {max((node.get(name, 0.0) for node in nodes), default=0.0):g}" for name in wanted)
    return False, f"None of Ray's nodes ({len(nodes)}) has what it asks for, {asked}. The most that one has is {most}."
