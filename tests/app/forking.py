"""Tasks that start processes, leave alarms behind, and close what is not theirs."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

from django_manta import task
from tests.app.models import Ledgerline


def _terminated(method: str) -> int | None:
    process = multiprocessing.get_context(method).Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join(20)
    code = process.exitcode
    process.kill()
    return code


@task(timeout=60)
def terminate_a_process(method: str) -> int | None:
    return _terminated(method)


@task(timeout=60)
async def terminate_a_process_from_a_coroutine() -> int | None:
    return await sync_to_async(_terminated)("fork")


@task(timeout=30)
def use_a_pool(method: str) -> int:
    with multiprocessing.get_context(method).Pool(2) as pool:
        pool.apply_async(time.sleep, (60,))
        return pool.apply(abs, (-3,))


@task(timeout=30)
def use_an_executor(method: str) -> int:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        return pool.submit(abs, -4).result()


_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)


def _handlers() -> list[str]:
    return [getattr(handler := signal.getsignal(number), "__name__", str(handler)) for number in _NUMBERS]


def _told_by_a_fork(tell: Any) -> Any:
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, repr(tell()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        words = answer.read()
    os.waitpid(pid, 0)
    return words


@task
def tell_handlers_of_a_fork(own: bool) -> str:
    """``own``: after the task has set a handler of its own, which a fork inherits."""
    if own:
        signal.signal(signal.SIGTERM, _handler_of_the_task)
    found: str = _told_by_a_fork(_handlers)
    return found


def _handler_of_the_task(number: int, frame: Any) -> None:
    pass


@task
def ignored_by_a_program() -> str:
    return _ignored()


@task
async def ignored_by_a_program_of_a_coroutine() -> str:
    return await sync_to_async(_ignored)()


def _ignored() -> str:
    """Which of our signals a program that is started here ignores."""
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return ",".join(number.name for number in _NUMBERS if ignored & (1 << (number - 1)))


@task
def start_in_a_thread_that_ends(path: str) -> int | None:
    """A fork and a program that are started in a thread which is gone before they are done."""
    programs: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        if os.fork() == 0:
            _wait_for(Path(f"{path}-go"))
            Path(path).touch()
            os._exit(0)
        programs.append(subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with contextlib.suppress(subprocess.TimeoutExpired):
        programs[0].wait(0.5)
    code = programs[0].poll()
    programs[0].kill()
    programs[0].wait()
    return code


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and not path.exists():
        time.sleep(0.05)


_kept: list[Any] = []


def _precious(path: Path) -> Any:
    file = path.open("w+")
    file.write("PRECIOUS DATA")
    file.flush()
    return file


@task
def close_descriptors_and_open_files(directory: str) -> int:
    """What it opens then has the descriptors that it has closed."""
    os.closerange(3, 256)
    for number in range(10):
        _kept.append(_precious(Path(directory, f"{number}.txt")))
    return os.getpid()


@task
def put_a_file_where_the_recorder_s_is(path: str) -> int:
    file = _precious(Path(path))
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "manta-output" in str(place.readlink()):
                os.dup2(file.fileno(), int(place.name))
    print("overwritten" * 10)
    return os.getpid()


@task
def speak(words: str) -> int:
    print(words)
    return os.getpid()


@task
def leave_an_alarm(seconds: float, repeated: float = 0.0) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds, repeated)


@task(atomic=True)
def fork_and_return_atomically(label: str) -> str:
    """The copy is the first that returns."""
    Ledgerline.objects.create(label=label)
    pid = os.fork()
    if pid == 0:
        return "the copy"
    os.waitpid(pid, 0)
    return "the original"


@task(atomic=True)
def fork_and_leave_atomically(label: str, politely: bool) -> list[int]:
    """The codes with which copies end that leave by an exception."""
    Ledgerline.objects.create(label=label)
    pid = os.fork()
    if pid == 0:
        if politely:
            sys.exit(7)
        raise ValueError("the copy")
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
