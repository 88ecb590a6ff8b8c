"""pause, resume, prune, fsck, doctor, health: keeping the house in order."""

import os
import socket
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings

from django_manta.commands import doctor, prune
from django_manta.exceptions import WrongCluster
from django_manta.ledger import Ledger, RayPlace, house
from django_manta.models import Cluster, Queue, Run
from django_manta.payload import Seal
from django_manta.testing import run_all
from django_manta.worker.doorbell import PostgresDoorbell
from tests.app import tasks
from tests.commands.conftest import manta, manta_json
from tests.ledger.given import lose, sql, worker_record

pytestmark = pytest.mark.django_db

MANTA: dict[str, Any] = {"BACKEND": "django_manta.MantaBackend", "QUEUES": ["default", "urgent", "slow"]}


def with_options(**options: Any) -> override_settings:
    return override_settings(TASKS={"default": {**MANTA, "OPTIONS": options}})


def register(worker: str = "worker", **changes: Any) -> None:
    Ledger().register(worker_record(worker, **changes))


def silence(worker: str, seconds: float) -> None:
    """As if the worker had last been seen so long ago."""
    seen = Ledger().dialect.moment(house.clock(Ledger()) - timedelta(seconds=seconds))
    sql(Ledger(), "UPDATE manta_worker SET seen_at = %s WHERE id = %s", [seen, worker])


# -- pause and resume --------------------------------------------------------------------------------


def test_queues_are_paused_and_resumed() -> None:
    assert manta("pause", "default", "slow").lines == ["Queue 'default' is paused.", "Queue 'slow' is paused."]
    assert manta("pause", "default").out.startswith("Queue 'default' is paused already, since ")
    assert manta_json("pause", "default,urgent") == [
        {"queue": "default", "paused": True, "changed": False},
        {"queue": "urgent", "paused": True, "changed": True},
    ]
    tasks.add.enqueue(1, 1)
    assert Ledger().claim("worker", ["default"], 1) == []
    assert manta("resume", "default").out == "Queue 'default' is resumed.\n"
    assert manta("resume", "default").out == "Queue 'default' was not paused.\n"
    assert len(Ledger().claim("worker", ["default"], 1)) == 1


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_queue_that_nobody_declared_is_refused(verb: str) -> None:
    with pytest.raises(CommandError) as refused:
        manta(verb, "slow", "defalt")
    assert str(refused.value) == (
        "Queue 'defalt' is not declared. Did you mean 'default'? TASKS['default'] has: default, slow, urgent. "
        "--force takes any name."
    )
    assert not Queue.objects.exists()
    manta(verb, "defalt", "--force")


def test_a_queue_that_is_no_longer_declared_can_be_resumed() -> None:
    manta("pause", "former", "--force")
    assert manta("resume", "former").out == "Queue 'former' is resumed.\n"


# -- prune -------------------------------------------------------------------------------------------


def test_prune_removes_what_is_past_its_retention() -> None:
    tasks.add.starmap([(n, n) for n in range(3)])
    tasks.fail.enqueue()
    run_all()
    with with_options(RETENTION={"SUCCESSFUL": timedelta(0)}):
        assert manta("prune", "--dry-run").out == "Would remove 3 runs: 3 SUCCESSFUL.\n"
        assert Run.objects.count() == 4
        told = manta_json("prune")
        assert (told["removed"]["SUCCESSFUL"], told["removed"]["FAILED"], told["capped"]) == (3, 0, [])
        assert manta("prune").out == "Removed 0 runs.\n"
    assert Run.objects.count() == 1


def test_a_dry_prune_counts_no_further_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "COUNT_LIMIT", 2)
    tasks.add.starmap([(n, n) for n in range(3)])
    run_all()
    with with_options(RETENTION={"SUCCESSFUL": timedelta(0)}):
        assert manta("prune", "--dry-run").out == "Would remove 2+ runs: 2 SUCCESSFUL or more.\n"
        assert manta_json("prune", "--dry-run")["capped"] == ["SUCCESSFUL"]


# -- fsck --------------------------------------------------------------------------------------------


def break_runs(count: int = 1) -> None:
    """Ready runs with a leftover owner (which can be repaired)."""
    tasks.add.starmap([(n, n) for n in range(count)])
    sql(Ledger(), "UPDATE manta_run SET worker = 'ghost' WHERE state = 'READY'")


def test_fsck_of_a_clean_ledger() -> None:
    tasks.add.enqueue(1, 1)
    assert (manta("fsck").code, manta("fsck").out) == (0, "The ledger is clean.\n")
    assert manta_json("fsck") == {"clean": True, "capped": False, "findings": []}


def test_fsck_finds_and_repairs() -> None:
    break_runs()
    found = manta("fsck")
    assert found.code == 1
    assert "token-without-owner" in found.out
    assert "`manta fsck --repair` puts it right" in found.out
    assert found.lines[-1] == "1 of 1 findings remain."
    repaired = manta("fsck", "--repair")
    assert (repaired.code, repaired.lines[-1]) == (0, "The ledger is clean: 1 repaired.")
    assert manta("fsck").code == 0


def test_what_only_a_person_can_repair_remains() -> None:
    tasks.add.enqueue(1, 1)
    sql(Ledger(), "UPDATE manta_run SET state = 'NONSENSE'")
    for flags in ((), ("--repair",)):
        found = manta("fsck", *flags, "--format", "json")
        assert (found.code, found.data["clean"]) == (1, False)
        assert found.data["findings"][0]["check"] == "unknown-state"
    assert "a person must look" in manta("fsck").out


def test_repair_goes_on_until_nothing_is_left() -> None:
    break_runs(5)
    assert "There may be more than these 2" in manta("fsck", "--limit", 2).out
    repaired = manta("fsck", "--repair", "--limit", 2, "--format", "json")
    assert (repaired.code, len(repaired.data["findings"])) == (0, 5)


# -- doctor ------------------------------------------------------------------------------------------


def examined(*arguments: str) -> dict[str, tuple[str, str]]:
    """The worst line of each check."""
    worst: dict[str, tuple[str, str]] = {}
    rank = [doctor.OK, doctor.WARNING, doctor.WRONG]
    for line in manta_json("doctor", *arguments)["checks"]:
        known = worst.get(line["check"])
        if known is None or rank.index(line["status"]) > rank.index(known[0]):
            worst[line["check"]] = line["status"], f"{line['message']} → {line['remedy']}"
    return worst


def test_a_doctor_who_finds_nothing_says_what_was_looked_at() -> None:
    register(queues=("default", "slow", "urgent"))
    tasks.add.enqueue(1, 1)
    done = manta("doctor")
    assert done.code == 0, done.out
    assert [line.split()[:2] for line in done.lines] == [
        ["ok", check]
        for check in (
            *(
                "settings",
                "database",
                "migrations",
                "doorbell",
                "clock",
                "key",
                "workers",
                "orphans",
                "retention",
                "ledger",
            ),
        )
    ]
    assert manta("doctor", "--format", "json").data["ok"] is True


def test_the_doctor_changes_nothing() -> None:
    manta("doctor")
    assert not Cluster.objects.exists()


def test_ready_runs_without_a_worker_are_a_problem() -> None:
    register(queues=("default",))
    tasks.add.using(queue_name="slow").enqueue(1, 1)
    status, words = examined()["workers"]
    assert status == "wrong"
    assert words == "queue 'slow' has ready runs and no live worker → manage.py manta worker --queues slow"
    assert manta("doctor").code == 1


def test_a_paused_queue_with_ready_runs_is_a_warning() -> None:
    register()
    tasks.add.enqueue(1, 1)
    manta("pause", "default")
    assert examined()["workers"][0] == "warning"
    assert manta("doctor").code == 0


def test_silent_workers_and_what_nobody_makes_ready_are_problems() -> None:
    register()
    silence("worker", 3600)
    assert "worker worker was last seen 1h00m ago, and nobody declared it lost" in examined()["workers"][1]
    sql(Ledger(), "DELETE FROM manta_worker")
    result = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1, 1)
    assert examined()["workers"][0] == "ok"
    past = Ledger().dialect.moment(Run.objects.get(pk=result.id).enqueued_at - timedelta(hours=1))
    sql(Ledger(), "UPDATE manta_run SET due_at = %s", [past])
    assert "a scheduled run is overdue by 1h00m" in examined()["workers"][1]


def test_orphans_are_a_problem() -> None:
    tasks.add.enqueue(1, 1)
    lose(Ledger(), "gone")
    sql(Ledger(), "UPDATE manta_run SET state = 'RUNNING', worker = 'gone', token = 7, attempts = 1")
    status, words = examined()["orphans"]
    assert (status, words.startswith("1 run held by workers that are gone (gone) → A live worker")) == (
        "wrong",
        True,
    )


def test_broken_invariants_are_a_problem() -> None:
    register()
    break_runs()
    status, words = examined()["ledger"]
    assert status == "wrong"
    assert "1 broken invariants (first: token-without-owner" in words


def test_a_large_ledger_is_left_to_fsck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "QUICK_RUNS", 2)
    register()
    break_runs(3)
    status, words = examined()["ledger"]
    assert (status, "`manta fsck` does" in words) == ("ok", True)


def test_another_key_is_a_problem_and_a_former_one_is_not() -> None:
    seal = Seal("default")
    former = seal.fingerprint
    Ledger().check_key(seal)
    assert examined()["key"][0] == "ok"
    with override_settings(SECRET_KEY="y" * 25 + "another-key-that-is-long-enough", TASKS={"default": MANTA}):
        status, words = examined()["key"]
        assert (status, former in words, "SECRET_KEY_FALLBACKS" in words) == ("wrong", True, True)
    assert Cluster.objects.get().key_fingerprint == former
    with override_settings(
        SECRET_KEY="y" * 25 + "another-key-that-is-long-enough",
        SECRET_KEY_FALLBACKS=[settings.SECRET_KEY],
        TASKS={"default": MANTA},
    ):
        assert examined()["key"][0] == "ok"
    assert Cluster.objects.get().key_fingerprint == former


def test_settings_that_cannot_be_read_are_told_and_nothing_else_looked_at() -> None:
    with with_options(PROCESSES=0, NONSENSE=1):
        found = manta("doctor")
        assert found.code == 1
        assert {line.split()[1] for line in found.lines} == {"settings"}
        assert "manta.E001" in found.out
        assert "manta.E002" in found.out
        with pytest.raises(CommandError, match="PROCESSES must be a whole number above 0"):
            manta("info")


def test_a_warning_of_the_settings_is_no_error() -> None:
    with with_options(QUEUE_OPTIONS={"nowhere": {}}):
        status, words = examined()["settings"]
        assert (status, words.startswith("manta.W002")) == ("warning", True)
        assert manta("doctor").code == 0


def test_migrations_that_are_not_applied_are_a_problem() -> None:
    [(_, newest)] = MigrationLoader(connection).graph.leaf_nodes("manta")
    MigrationRecorder(connection).record_unapplied("manta", newest)
    status, words = examined()["migrations"]
    assert (status, words) == ("wrong", f"not applied: {newest} → manage.py migrate manta")
    assert "ledger" not in examined()


def test_an_old_database_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OLDEST", {connection.vendor: (99, 1)})
    status, words = examined()["database"]
    assert (status, words.endswith("is too old → Upgrade to 99.1 or newer.")) == ("wrong", True)


def test_clocks_that_disagree_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = house.clock
    monkeypatch.setattr(house, "clock", lambda ledger: clock(ledger) + timedelta(minutes=2))
    status, words = examined()["clock"]
    assert status == "wrong"
    assert words.startswith("this machine's clock is 2m00s behind the database's")
    monkeypatch.setattr(house, "clock", lambda ledger: clock(ledger) - timedelta(minutes=2))
    assert "ahead of" in examined()["clock"][1]


@pytest.mark.postgres
def test_a_doorbell_that_nobody_hears_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresDoorbell, "works", lambda self: False)
    status, words = examined()["doorbell"]
    assert status == "warning"
    assert "look once a second" in words
    assert "pool per session" in words


# -- health ------------------------------------------------------------------------------------------


def test_health_is_that_the_database_answers() -> None:
    assert (manta("health").code, manta("health").out) == (0, "ok: database 'default' answers\n")
    assert manta_json("health") == {"healthy": True, "message": "database 'default' answers"}


@pytest.mark.parametrize("wanted", ["worker", "somebody", str(os.getpid())], ids=["id", "name", "pid"])
def test_health_of_a_worker_is_a_fresh_lease(wanted: str) -> None:
    register(host=socket.gethostname(), pid=os.getpid())
    assert manta("health", "--worker", wanted).code == 0
    silence("worker", 31)
    done = manta("health", "--worker", wanted)
    assert (done.code, done.out) == (1, "unhealthy: worker worker is silent, last seen 31s ago\n")
    with with_options(LEASE_SECONDS=60):
        assert manta("health", "--worker", wanted).code == 0


def test_a_lost_worker_is_not_healthy_but_its_successor_is() -> None:
    lose(Ledger(), "former")
    done = manta("health", "--worker", "somebody")
    assert done.code == 1
    assert "was declared lost" in done.out
    register("successor")
    assert manta("health", "--worker", "somebody").code == 0


def test_a_process_of_another_machine_is_not_meant_by_its_number() -> None:
    register(host="elsewhere", pid=4711)
    done = manta("health", "--worker", "4711")
    assert (done.code, done.out) == (1, "unhealthy: there is no worker '4711'\n")


# -- a Ray that no worker speaks to ------------------------------------------------------------------


@pytest.fixture
def stranded() -> Any:
    """A run that a lost worker left on a Ray to which nobody speaks, while a worker of another Ray lives."""
    ledger = Ledger()
    result = tasks.add.enqueue(1, 2)
    seen_at = ledger.register(worker_record("left", runner="ray"))
    assert ledger.know_foremen("left", [("foreman", "1")], RayPlace("session_1/manta", "ray-head:6379/manta"))
    [_] = ledger.claim("left", ["default"], 1)
    assert ledger.mark_lost("left", seen_at)
    register("other", runner="ray")
    assert ledger.know_foremen("other", [("foreman", "2")], RayPlace("session_2/manta", "ray-two:6379/manta"))
    return result


def test_who_looks_is_told_which_ray_a_worker_is_needed_for(stranded: Any) -> None:
    words = (
        "1 run of the lost worker left on the Ray at ray-head:6379/manta (session_1/manta), to which no living "
        "worker speaks"
    )
    advice = (
        "Start one with that RAY: manage.py manta worker --runner ray. If that Ray is gone for good: manage.py manta "
        "recover left"
    )
    [line] = [line for line in manta_json("doctor")["checks"] if line["check"] == "orphans"]
    assert (line["status"], line["message"], line["remedy"]) == ("wrong", words, advice)
    assert manta("explain", stranded.id).lines[1] == f"It is one of {words}. {advice}."
    # To start the process anew would not help.
    done = manta("health")
    assert (done.code, done.out) == (0, f"ok: database 'default' answers; {words}\n")
    [finding] = manta_json("fsck")["findings"]
    assert (finding["check"], finding["run_id"]) == ("stranded", stranded.id)
    assert finding["detail"] == "RUNNING on the Ray at ray-head:6379/manta, to which no living worker speaks: left"
    # One that speaks to it needs nobody's help.
    register("new", runner="ray")
    Ledger().know_foremen("new", [], RayPlace("session_3/manta", "ray-head:6379/manta"))
    assert [finding["check"] for finding in manta_json("fsck")["findings"]] == ["orphaned"]
    assert manta("health").out == "ok: database 'default' answers\n"
    [line] = [line for line in manta_json("doctor")["checks"] if line["check"] == "orphans"]
    assert line["remedy"].startswith("A live worker recovers them")


def test_what_was_on_a_ray_that_is_gone_for_good_is_recovered_by_a_command(stranded: Any) -> None:
    with pytest.raises(CommandError, match="There is no worker 'nobody'"):
        manta("recover", "left", "nobody")
    with pytest.raises(CommandError, match="Worker other was not declared lost: its runs are its own"):
        manta("recover", "other")
    stranded.refresh()
    assert stranded.state == "RUNNING"
    assert manta("recover", "left").out == "Recovered 1 run: 1 READY.\n"
    stranded.refresh()
    assert [attempt.outcome.value for attempt in stranded.history] == ["LOST"]
    assert manta_json("recover", "left") == {"recovered": 0, "states": {}}
    assert manta("fsck").code == 0


# -- the cluster of the database ---------------------------------------------------------------------


def test_a_database_of_another_cluster_is_a_problem_until_it_is_renamed() -> None:
    assert manta("cluster").out == "Database 'default' belongs to no cluster yet; CLUSTER is 'default'.\n"
    Ledger().check_key(Seal("default"))
    with with_options(CLUSTER="shop"):
        run = tasks.add.enqueue(1, 2)
        [line] = [line for line in manta_json("doctor")["checks"] if line["check"] == "key"]
        assert line["status"] == "wrong"
        assert "the database belongs to the cluster 'default', and CLUSTER is 'shop'" in line["message"]
        assert line["remedy"].endswith("manage.py manta cluster --rename shop")
        with pytest.raises(WrongCluster, match="belongs to the cluster 'default', and CLUSTER is 'shop'"):
            run_all()
        with pytest.raises(CommandError, match="Unfinished: 1 run. Those that were enqueued under the former name"):
            manta("cluster", "--rename", "shop")
        with pytest.raises(CommandError, match="CLUSTER must be a name, not ''"):
            manta("cluster", "--rename", "")
        register("alive")
        with pytest.raises(CommandError, match="Workers of the former name live: alive"):
            manta("cluster", "--rename", "shop", "--force")
        Ledger().leave("alive")
        assert manta("cluster", "--rename", "shop", "--force").lines == [
            "Renamed 'default'. Set CLUSTER = 'shop' for every process.",
            "Database 'default' belongs to the cluster 'shop'; CLUSTER is 'shop'.",
        ]
        run_all()
        run.refresh()
        assert run.state == "SUCCESSFUL"
        assert manta_json("cluster") == {"database": "default", "clusters": ["shop"], "setting": "shop"}
