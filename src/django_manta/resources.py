"""
What a task may ask of Ray, and the environments that are prepared for it there.

Read at definition, by processes that have no Ray: all that is wrong is said before anything is enqueued.
"""

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

#: What a run holds unless it says otherwise: one processor, as every Ray task does.
DEFAULT_CPUS: Final = 1


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be a number")
    if not 0 <= value < math.inf:
        raise ValueError("must be 0 or more")
    if value > 1 and value != int(value):
        raise ValueError("must be a whole number if it is more than 1")
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("must be a whole number of bytes")
    if value < 1:
        raise ValueError("must be more than 0 bytes")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError("must be a name")
    return value


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise TypeError(f"must be a dict of {what}")
    return value


def _resources(value: Any) -> dict[str, float]:
    kept = {}
    for name, amount in _mapping(value, "resources and amounts").items():
        if name in ("CPU", "GPU", "memory"):
            raise ValueError(f"must not name {name!r}, which has a keyword of its own")
        try:
            kept[name] = _amount(amount)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} for {name!r}") from None
    return kept


def _labels(value: Any) -> dict[str, str]:
    return {name: _text(wanted) for name, wanted in _mapping(value, "labels and what they must be").items()}


#: What may stand in ``ray={...}``: how it is read, and what it accepts.
KEYS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "num_cpus": (_amount, "processors that it holds while it runs (1)"),
    "num_gpus": (_amount, "GPUs; Ray shows it only those it was given"),
    "memory": (_bytes, "bytes that must be free on its node"),
    "resources": (_resources, "dict of your own resources and amounts"),
    "accelerator_type": (_text, "kind of GPU, such as `'A100'`"),
    "label_selector": (_labels, "dict of node labels"),
    "runtime_env": (_text, "name of a profile in `RUNTIME_ENVS`"),
}


def parse(value: Any) -> dict[str, Any]:
    """The kept form of ``ray={...}``. Raise TypeError or ValueError with a sentence."""
    if not isinstance(value, Mapping):
        raise TypeError(f"must be a dict with {', '.join(KEYS)}")
    kept = {}
    for name, given in value.items():
        if name not in KEYS:
            close = difflib.get_close_matches(str(name), KEYS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" It knows {', '.join(KEYS)}."
            raise ValueError(f"has no {name!r}.{hint}")
        try:
            kept[name] = KEYS[name][0](given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name!r} {error}, not {given!r}") from None
    return kept


def is_special(asked: Mapping[str, Any]) -> bool:
    """Whether a run asks for more, or for something else, than any other: it is never put into one chunk with them."""
    return any(name != "runtime_env" for name in asked)


# -- runtime environments ----------------------------------------------------------------------------

#: What Ray can prepare for a task. A ``working_dir`` of this machine can only be given to a whole job.
ENVIRONMENT_KEYS: Final = ("env_vars", "pip", "uv", "conda", "working_dir", "py_modules", "image_uri", "config")
EXTENDS: Final = "EXTENDS"


def environments(profiles: Any) -> dict[str, dict[str, Any]]:
    """``RUNTIME_ENVS`` with every profile as a whole, those that it extends included."""
    given = _mapping(profiles, "names and profiles")
    for name, profile in given.items():
        _check_profile(name, profile, given)
    return {name: _whole(name, given, ()) for name in given}


def _check_profile(name: str, profile: Any, others: Mapping[str, Any]) -> None:
    for key, value in _mapping(profile, f"settings of profile {name!r}").items():
        if key == EXTENDS:
            if value not in others:
                raise ValueError(f"must define what {name!r} extends, {value!r}")
        elif key not in ENVIRONMENT_KEYS:
            raise ValueError(f"knows {', '.join((EXTENDS, *ENVIRONMENT_KEYS))}, not {key!r} in {name!r}")
        elif key == "env_vars":
            if not all(isinstance(each, str) for each in _mapping(value, f"variables in {name!r}").values()):
                raise TypeError(f"must have strings as env_vars in {name!r}")
        elif key == "working_dir" and "://" not in str(value):
            raise ValueError(
                f"must have a URI as working_dir in {name!r}, not {value!r}: Ray uploads a local directory only for "
                "whole jobs"
            )


def _whole(name: str, given: Mapping[str, Any], seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise ValueError(f"must not go round in circles: {' extends '.join((*seen, name))}")
    own = {key: value for key, value in given[name].items() if key != EXTENDS}
    if EXTENDS not in given[name]:
        return own
    whole = {**_whole(given[name][EXTENDS], given, (*seen, name)), **own}
    if "env_vars" in own:
        inherited = _whole(given[name][EXTENDS], given, (*seen, name)).get("env_vars", {})
        whole["env_vars"] = {**inherited, **own["env_vars"]}
    return whole


# -- for Ray -----------------------------------------------------------------------------------------


def ray_options(
    asked: Mapping[str, Any], profiles: Mapping[str, dict[str, Any]], default: str | None
) -> dict[str, Any]:
    """What a run asks for, as Ray's ``.options()`` takes it. Raise LookupError for a profile that does not exist."""
    options = {name: value for name, value in asked.items() if name != "runtime_env"}
    options.setdefault("num_cpus", DEFAULT_CPUS)
    profile = asked.get("runtime_env", default)
    if profile is not None:
        if profile not in profiles:
            raise LookupError(f"RUNTIME_ENVS has no profile {profile!r}; it has: {', '.join(profiles) or 'none'}.")
        options["runtime_env"] = profiles[profile]
    return options


def job_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as Ray takes it for a job."""
    wanted = {f"entrypoint_{name}": options[name] for name in ("num_cpus", "num_gpus", "memory") if options.get(name)}
    own = dict(options.get("resources", {}))
    if "accelerator_type" in options:
        # As Ray says it itself: whoever is on such a node has a little of it.
        own[f"accelerator_type:{options['accelerator_type']}"] = 0.001
    if own:
        wanted["entrypoint_resources"] = own
    if options.get("label_selector"):
        wanted["entrypoint_label_selector"] = options["label_selector"]
    return wanted
