"""
Ray's Jobs API, spoken over HTTP with Ray's dashboard.

Every call here blocks, for as long as its time limit allows: it is for a thread that has nothing else to do. Neither
Ray nor a package that speaks HTTP has to be installed for it.
"""

import json
import os
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

#: How long to wait for an answer, and for each piece of it.
ANSWER_SECONDS = 10.0

#: So much of a job's log is kept, its end: an outcome that is told there has to fit in.
TAIL_BYTES = 6 * 1024 * 1024
_PIECE_BYTES = 256 * 1024

PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED = "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"
ENDED = frozenset({STOPPED, SUCCEEDED, FAILED})


class Away(Exception):
    """Nobody answers, or not in a way that says anything about the job."""


class Refused(Exception):
    """Ray will never take this job."""


class Dashboard:
    """The dashboard at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._parts = urlsplit(self.url)

    def session(self) -> str:
        """The name of Ray's session: another one knows nothing of the jobs of the last."""
        _, body = self._call("GET", "/api/version")
        return str(_json(body)["session_name"])

    def submit(self, request: dict[str, Any]) -> bool:
        """Submit a job. Whether it is new: a job is submitted once, however often one tries."""
        status, body = self._call("POST", "/api/jobs/", request, expect=(200, 400, 500))
        if status == 200:
            return True
        words = body.decode("utf-8", "replace")
        if "already exists" in words:
            return False
        if status == 400:
            raise Refused(words.strip().rpartition("\n")[2])
        raise Away(f"Ray could not take the job: {words.strip().rpartition('\n')[2]}")

    def look(self, job: str) -> dict[str, Any] | None:
        """What Ray knows of a job; None if it does not know it."""
        status, body = self._call("GET", f"/api/jobs/{quote(job)}", expect=(200, 404))
        found: dict[str, Any] = _json(body) if status == 200 else {}
        return found or None

    def stop(self, job: str) -> None:
        """Ask for the end of a job. Ray says yes also when it cannot: only ``look`` tells what became of it."""
        self._call("POST", f"/api/jobs/{quote(job)}/stop", expect=(200, 404))

    def log(self, job: str) -> tuple[str, bool]:
        """The end of a job's log, and whether that is all of it."""
        status, body = self._call("GET", f"/api/jobs/{quote(job)}/logs", expect=(200, 404, 500), tail=True)
        if status != 200:
            # Its node is gone, and the log with it.
            raise LookupError(f"The log of job {job} cannot be read.")
        return _logs(body)

    def _call(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        expect: tuple[int, ...] = (200,),
        tail: bool = False,
    ) -> tuple[int, bytes]:
        connect = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        connection = connect(self._parts.hostname or "", self._parts.port, timeout=ANSWER_SECONDS)
        body = None if content is None else json.dumps(content).encode()
        try:
            headers = {"Content-Type": "application/json", **_authorization()}
            connection.request(method, f"{self._parts.path}{path}", body, headers)
            response = connection.getresponse()
            kept = _last(response) if tail else response.read()
        except (OSError, HTTPException) as error:
            raise Away(f"Ray's dashboard does not answer at {self.url}: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status not in expect:
            words = kept[:200].decode("utf-8", "replace").strip()
            raise Away(f"Ray's dashboard at {self.url} answers {response.status}: {words}")
        return response.status, kept


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Away("What answers in the place of Ray's dashboard speaks no JSON.") from None


def _last(response: Any) -> bytes:
    kept = b""
    while piece := response.read(_PIECE_BYTES):
        kept = (kept + piece)[-TAIL_BYTES:]
    return kept


def _logs(body: bytes) -> tuple[str, bool]:
    """The text in ``{"logs": "…"}``, of which the beginning may be missing."""
    if len(body) < TAIL_BYTES:
        return str(_json(body)["logs"] or ""), True
    # From the first whole line on: what a backslash belongs to is known there.
    _, _, rest = body.rpartition(b'"}')[0].partition(b"\\n")
    return str(_json(b'"' + rest + b'"')), False


def _authorization() -> dict[str, str]:
    """Ray's token, where Ray itself looks for it."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    if not token:
        place = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
        try:
            token = Path(place).read_text()
        except OSError:
            return {}
    return {"Authorization": f"Bearer {token.strip()}"}
