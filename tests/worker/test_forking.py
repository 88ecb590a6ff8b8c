"""What a task starts, forks or leaves behind: as in plain Python, and no other run notices."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from django_manta import State
from django_manta.ledger import Ledger, fsck
from tests.app import forking, tasks
from tests.app.models import Ledgerline
from tests.worker.conftest import ROOT, Start, ended, outcomes, wait_for

METHODS = ["fork", "forkserver", "spawn"]


def test_what_a_task_forks_has_the_signal_handlers_of_plain_python(start_worker: Start) -> None:
    terminated = forking.terminate_a_process.map(METHODS)
    from_a_coroutine = forking.terminate_a_process_from_a_coroutine.enqueue()
    pools = forking.use_a_pool.map(METHODS)
    executors = forking.use_an_executor.map(METHODS)
    handlers = forking.tell_handlers_of_a_fork.enqueue(False)
    own = forking.tell_handlers_of_a_fork.enqueue(True)
    programs = [forking.ignored_by_a_program.enqueue(), forking.ignored_by_a_program_of_a_coroutine.enqueue()]
    everything = [*terminated, from_a_coroutine, *pools, *executors, handlers, own, *programs]
    worker = start_worker("--processes", "2").ready()
    ended(*everything, limit=150, worker=worker)
    assert [outcomes(run) for run in everything] == [["SUCCESSFUL"]] * len(everything), worker.tell()
    assert [run.return_value for run in (*terminated, from_a_coroutine)] == [-15] * 4
    assert [run.return_value for run in pools] == [3] * 3
    assert [run.return_value for run in executors] == [4] * 3
    plain = ["0", "default_int_handler", "0", "0", "0"]
    assert handlers.return_value.replace("Handlers.SIG_DFL", "0") == repr(plain)
    assert own.return_value.replace("Handlers.SIG_DFL", "0") == repr(["_handler_of_the_task", *plain[1:]])
    assert [run.return_value for run in programs] == ["", ""]


def test_what_a_thread_of_a_task_has_started_outlives_the_thread(start_worker: Start, tmp_path: Path) -> None:
    result = forking.start_in_a_thread_that_ends.enqueue(str(tmp_path / "done"))
    worker = start_worker("--processes", "1").ready()
    ended(result, worker=worker)
    assert (outcomes(result), result.return_value) == (["SUCCESSFUL"], None)
    (tmp_path / "done-go").touch()
    wait_for((tmp_path / "done").exists, 20, worker.tell)


def test_what_a_task_opens_in_place_of_what_it_has_closed_is_not_written_to(
    start_worker: Start, tmp_path: Path
) -> None:
    closing = forking.close_descriptors_and_open_files.enqueue(str(tmp_path))
    worker = start_worker("--processes", "1").ready()
    ended(closing, worker=worker)
    others = forking.speak.map([f"words {n}" for n in range(20)])
    ended(*others, worker=worker)
    replacing = forking.put_a_file_where_the_recorder_s_is.enqueue(str(tmp_path / "10.txt"))
    ended(replacing, worker=worker)
    after = forking.speak.map([f"words {n}" for n in range(20)])
    ended(*after, worker=worker)
    assert [path.read_text() for path in tmp_path.glob("*.txt")] == ["PRECIOUS DATA"] * 11
    assert {tuple(outcomes(run)) for run in (*others, replacing, *after)} == {("SUCCESSFUL",)}
    # Its process has been replaced: what it would record has no place any more.
    assert replacing.return_value not in {run.return_value for run in after}


def test_an_alarm_that_a_task_leaves_behind_does_not_end_the_next_one(start_worker: Start) -> None:
    worker = start_worker("--processes", "1").ready()
    leaving = [forking.leave_an_alarm.enqueue(0.5), tasks.sleep.enqueue(1.5), forking.leave_an_alarm.enqueue(0.1, 0.1)]
    ended(*leaving, tasks.sleep.enqueue(0.5), worker=worker)
    assert [outcomes(run) for run in leaving] == [["SUCCESSFUL"]] * 3
    limited = tasks.sleep_too_long.enqueue()
    ended(limited, worker=worker)
    assert outcomes(limited) == ["TIMED_OUT", "TIMED_OUT"]


def test_a_copy_of_the_process_that_leaves_an_atomic_task_settles_nothing(start_worker: Start) -> None:
    returning = forking.fork_and_return_atomically.enqueue("returning")
    leaving = forking.fork_and_leave_atomically.enqueue("leaving", True)
    raising = forking.fork_and_leave_atomically.enqueue("raising", False)
    worker = start_worker("--processes", "1").ready()
    ended(returning, leaving, raising, worker=worker)
    assert (returning.return_value, leaving.return_value, raising.return_value) == ("the original", [7], [1])
    assert [outcomes(run) for run in (returning, leaving, raising)] == [["SUCCESSFUL"]] * 3
    assert Ledgerline.objects.count() == 3
    assert fsck.check(Ledger()) == []


def _a_place_with_bad_modules(path: Path) -> None:
    for name in ("ctypes", "json", "socket", "selectors", "asyncio", "django"):
        (path / f"{name}.py").write_text(f"open({str(path / 'executed')!r}, 'a').write({name!r}); raise SystemExit(9)")


def test_the_current_directory_is_not_where_a_worker_looks_for_modules(
    transactional_db: None, subprocess_environment: dict[str, str], tmp_path: Path
) -> None:
    _a_place_with_bad_modules(tmp_path)
    result = tasks.add.enqueue(1, 2)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "manage.py", "manta", "worker", "--burst"],
        cwd=tmp_path,
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", **subprocess_environment, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert not (tmp_path / "executed").exists(), done.stderr
    assert done.returncode == 0, done.stderr
    result.refresh()
    assert result.state is State.SUCCESSFUL


def test_the_current_directory_is_not_where_the_process_that_speaks_with_ray_looks_for_modules(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from django_manta.execution.runners.forkserver import python

    _a_place_with_bad_modules(tmp_path)
    ours, theirs = socket.socketpair()
    # Nobody has anything to say to it: it leaves.
    ours.close()
    with theirs:
        done = subprocess.run(
            python("django_manta.execution.runners.ray.envoy", theirs.fileno()),
            cwd=tmp_path,
            pass_fds=[theirs.fileno()],
            env={**os.environ},
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert not (tmp_path / "executed").exists(), done.stderr
    assert done.returncode == 0, done.stderr
