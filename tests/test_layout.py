"""Dependencies point one way. These are the import rules that docs/architecture.md tells."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "django_manta"

#: Who may not import what. Names are prefixes below ``django_manta``.
FORBIDDEN = {
    "ledger": [
        "backend",
        "task",
        "result",
        "context",
        "enqueue",
        "execution",
        "worker",
        "models",
        "testing",
        "options",
    ],
    "execution": ["worker", "testing", "admin"],
    "worker": ["testing", "admin"],
    "payload": ["ledger", "backend", "task", "result", "execution", "models"],
    "states": ["ledger", "backend", "task", "result", "execution", "models", "payload"],
    "backend": ["execution", "worker"],
    "task": ["execution", "worker", "models"],
    "result": ["execution", "worker"],
    "context": ["execution", "worker", "models"],
    "models": ["backend", "execution", "worker", "ledger"],
}


def imports_of(file: Path) -> Iterator[tuple[str, bool]]:
    """What a module of ours imports of ours, and whether at module level (not for type checkers only)."""
    tree = ast.parse(file.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            yield name, id(node) in top


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_point_one_way(part: str) -> None:
    files = [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else sorted((PACKAGE / part).rglob("*.py"))
    for file in files:
        for name, at_top in imports_of(file):
            for other in FORBIDDEN[part]:
                if at_top and (name == f"django_manta.{other}" or name.startswith(f"django_manta.{other}.")):
                    pytest.fail(f"{file.relative_to(PACKAGE)} imports {name}")


def test_only_the_ledger_speaks_sql() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        if "ledger" in file.parts or "migrations" in file.parts:
            continue
        text = file.read_text()
        assert ".cursor()" not in text, file
        assert ".execute(statement" not in text, file


def test_only_what_runs_on_ray_imports_ray() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        if PACKAGE / "execution" / "runners" / "ray" not in file.parents:
            assert not any(name == "ray" or name.startswith("ray.") for name, _ in imports_of(file)), file


def test_every_statement_has_a_comment_and_every_dialect_has_every_statement() -> None:
    folders = {
        folder: {file.stem for file in (PACKAGE / "ledger" / folder).glob("*.sql")}
        for folder in ("postgres", "sqlite", "shared")
    }
    # What one dialect needs a second statement for, the other does in one.
    assert folders["postgres"] - folders["sqlite"] == {
        "constraints",
        "ring",
        "arm_lock",
        "arm_free",
        "tell_lock",
        "hush_gone",
        "briefly",
        "compiles",
        "lock_clusters",
        "arm_own",
        "heralds_for",
        "claim_line",
        "claim_behind",
        "enqueue_plain",
        "enqueue_waiting",
        "settle_well",
        "tell",
        "tell_own",
        # SQLite has no sequence that could be behind.
        "tokens_behind",
        "lock_tokens",
        "advance_tokens",
    }
    assert folders["sqlite"] - folders["postgres"] == {
        "settle_attempts",
        "delete_attempts",
        "unarm",
        "delete_edges",
        "delete_gates",
        "delete_promises",
        "close_promises",
        "add_heralds",
        "judge_gates",
        "consume_gates",
        "consume_edges",
        "untold",
        "tell_edges",
        "tell_gates",
        "unready",
        "data_version",
    }
    assert not folders["shared"] & (folders["postgres"] | folders["sqlite"])
    for file in (PACKAGE / "ledger").rglob("*.sql"):
        assert file.read_text().startswith("-- "), file


def test_every_statement_is_used() -> None:
    code = "".join(file.read_text() for file in (PACKAGE / "ledger").glob("*.py"))
    for file in (PACKAGE / "ledger").rglob("*.sql"):
        if not file.stem.startswith("repair_"):
            assert f'"{file.stem}"' in code, file
