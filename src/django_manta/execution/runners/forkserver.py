"""
Forks the children of a worker from a process that has Django loaded and nothing else going on.

``main()`` sets Django up once, imports the apps' tasks, and then forks a child for each request that
comes over the control socket together with the child's descriptors. It reports each child's exit
status on the same socket. When the worker's end of it closes the children leave; the fork server goes
last, and the kernel ends those that stayed.

Not ``multiprocessing``'s fork server: that one keeps its clients' pipe open in every child, so that
it outlives a killed worker, and imports the worker's main module into each.
"""

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

#: How a request and a report look: short JSON messages on a SEQPACKET socket.
MESSAGE_BYTES = 64 * 1024

_PR_SET_PDEATHSIG = 1

#: Children whose worker is gone have so long to leave by themselves.
LEAVE_SECONDS = 0.7


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _wait_quietly()
    _load_django()
    _send(control, {"ready": os.getpid()})
    _serve(control)


def python(module: str, descriptor: int) -> list[str]:
    """
    The command that begins with ``main()`` of a module of ours. It looks for modules where this process does: not, as
    ``-m`` would, in the current directory first, where anybody may have put a file with the name of a library.
    """
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from {module} import main; main()"
    return [sys.executable, "-P", "-c", code, str(descriptor), json.dumps(sys.path)]


def _wait_quietly() -> None:
    """
    A signal to the whole process group is the worker's business.

    Handlers that do nothing, not SIG_IGN: that would be inherited by every program a task starts.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _nothing)


def _nothing(number: int, frame: Any) -> None:
    pass


def _load_django() -> None:
    import django
    from django.db import connections

    django.setup()
    from django_manta.task import load_tasks

    load_tasks()
    import django_manta.execution.runners.child  # noqa: F401

    connections.close_all()
    # What is loaded now is shared by all children as long as nobody writes to it; the collector would.
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> None:
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                woken.recv(4096)
                _report_the_dead(control)
            if control in ready:
                try:
                    message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 8)
                except OSError:
                    message, descriptors = b"", []
                if not message:
                    _wait_for_children()
                    return
                _fork(control, json.loads(message), descriptors, [woken.fileno(), wake.fileno()])


def _fork(control: socket.socket, request: dict[str, Any], descriptors: list[int], ours: list[int]) -> None:
    server = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        _send(control, {"forked": pid, "request": request["request"]})
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for descriptor in ours:
            os.close(descriptor)
        die_with(server)
        from django_manta.execution.runners.child import serve

        code = serve(request, descriptors)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _report_the_dead(control: socket.socket) -> None:
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        _send(control, {"died": pid, "code": code, "peak_memory": used.ru_maxrss * 1024})


def _wait_for_children() -> None:
    """Until the last has left, or it takes too long."""
    deadline = time.monotonic() + LEAVE_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.005)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    # If the worker is gone, the next read from it says so.
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


def die_with(parent: int) -> None:
    """On Linux the kernel ends this process when its parent dies, whatever it is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # It has died already, and nobody would be told of it any more.
            os._exit(1)
