"""A database that nobody has used before and nobody will miss, beside the one that DATABASE_URL names."""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """The URL of a new, empty database on the same server, or in the same folder; it goes with the block."""
    name = f"manta_demo_{os.getpid()}_{secrets.token_hex(3)}"
    parts = urlsplit(url)
    match parts.scheme:
        case "postgres" | "postgresql":
            with _on_server(url, name):
                yield parts._replace(path=f"/{name}").geturl()
        case "sqlite":
            folder = Path(unquote(parts.path.removeprefix("/"))).absolute().parent
            with _in_folder(folder, f"{name}.sqlite3") as file:
                yield f"sqlite:///{quote(str(file))}"
        case scheme:
            sys.exit(f"demo: DATABASE_URL begins with {scheme!r}; it can be 'postgresql' or 'sqlite'.")


@contextmanager
def _on_server(url: str, name: str) -> Iterator[None]:
    import psycopg

    def tell(command: str) -> None:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(command.encode())

    try:
        tell(f"CREATE DATABASE {name}")
    except psycopg.Error as error:
        sys.exit(f"demo: cannot create a scratch database on the server of DATABASE_URL: {error}")
    try:
        yield
    finally:
        tell(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _in_folder(folder: Path, name: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder / name
    finally:
        for leftover in folder.glob(f"{name}*"):  # SQLite keeps two more files beside it
            leftover.unlink()
