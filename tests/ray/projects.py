"""What a test calls in a process of Ray that knows nothing of a project yet."""

import os
from typing import Any

from django_manta.execution.runners.ray import chunk, messages


def load_one_and_then_another(one: dict[str, Any], another: dict[str, Any]) -> tuple[int, str]:
    """The process, and what it answers to the second."""
    chunk.load_django(one)
    order = {"protocol": messages.PROTOCOL, "environment": another}
    try:
        chunk.execute(messages.to_bytes(messages.dump(order)))
    except chunk.OtherProject as refusal:
        return os.getpid(), str(refusal)
    return os.getpid(), ""
