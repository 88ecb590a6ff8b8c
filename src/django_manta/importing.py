"""
From a dotted path to what it names: by importing it, or only if it is there already.

What a row names is imported when its signature says that this project wrote it, and not before.
"""

import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.utils.module_loading import import_string

from django_manta.current import current_run
from django_manta.exceptions import TaskCancelled, TaskTimeout


class ImportFailed(ImportError):
    """A module raised something else than ImportError while it was imported."""


def load(path: str) -> Any:
    """
    What ``path`` names. Its module is imported, and so executed.

    Raise ImportError whatever the module raises, SystemExit included: a module that ends its process when something
    is missing must not end ours.
    """
    return _guarded(import_string, path)


def load_module(name: str) -> None:
    """Import a module. Raise ImportError as load() does."""
    _guarded(import_module, name)


def _guarded(do: Callable[[str], Any], path: str) -> Any:
    try:
        return do(path)
    except ImportError:
        raise
    except BaseException as error:
        if _is_meant_for_us(error):
            raise
        raise ImportFailed(f"{type(error).__name__}: {error}") from error


def _is_meant_for_us(error: BaseException) -> bool:
    """A person, or a limit of the task that imports, raised it: it only happened to surface in the import."""
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, TaskCancelled | TaskTimeout) and current_run() is not None


def loaded(path: str) -> Any:
    """What ``path`` names in a module that this process has imported, or None. Nothing is executed."""
    module, _, name = path.rpartition(".")
    # Not getattr(): a module may have a __getattr__, which imports.
    return getattr(sys.modules.get(module), "__dict__", {}).get(name)
