"""The deadline against an API server that only knows one object."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import certifi
import pytest

from aiperf_svc.adapters.ttl.deadline import (
    RECHECK_S,
    RETRY_S,
    SOON_S,
    Answer,
    ApiServer,
    Deadline,
    keep_deadline,
    read_deadline,
)
from aiperf_svc.domain.errors import EnvironmentProblem

CREATED_S = 1_795_000_000
PATH = "/api/v1/namespaces/bench"


class FakeApi(ThreadingHTTPServer):
    """Serves one object under its path, keeps its own time, and writes down deletions."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.now_s = CREATED_S
        self.statuses: list[int] = []
        """Answers to give before the good ones."""
        self.authorizations: list[str] = []
        self.deletions: list[dict[str, Any]] = []
        self.broken: list[bytes] = []
        """Whole responses to give before the good ones."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeApi

    def do_GET(self) -> None:
        created = datetime.fromtimestamp(CREATED_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._answer({"metadata": {"uid": "uid-1", "creationTimestamp": created}})

    def do_DELETE(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.deletions.append({"path": self.path, **body})
        self._answer({"status": "Success"})

    def _answer(self, body: dict[str, Any]) -> None:
        self.server.authorizations.append(self.headers["Authorization"])
        if self.server.broken:
            self.wfile.write(self.server.broken.pop(0))
            return
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        data = json.dumps(body).encode()
        # `send_response` would add the machine's own date.
        self.send_response_only(status if self.path == PATH else 404)
        stamp = datetime.fromtimestamp(self.server.now_s, UTC)
        self.send_header("Date", format_datetime(stamp, usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class FakeTime:
    """Stands in for waiting: time passes on the server, and after some waits it is over."""

    def __init__(self, api: FakeApi, *, waits: int) -> None:
        self._api = api
        self._waits = waits
        self.pauses: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self._api.now_s += round(seconds)
        return len(self.pauses) == self._waits


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("pod-token\n")
    return tmp_path


def _keep(api: FakeApi, account: Path, *, ttl_s: float, waits: int, path: str = PATH) -> FakeTime:
    clock = FakeTime(api, waits=waits)
    deadline = Deadline(path=path, ttl_s=ttl_s, ready_file=account / "kept")
    keep_deadline(deadline, ApiServer(api.url, account=account), wait=clock.wait)
    return clock


def test_sleeps_until_creation_plus_ttl_and_then_deletes(api: FakeApi, account: Path) -> None:
    clock = _keep(api, account, ttl_s=120, waits=2)
    assert clock.pauses == [120, RETRY_S]
    assert [(d["path"], d["preconditions"]) for d in api.deletions] == [(PATH, {"uid": "uid-1"})]
    assert set(api.authorizations) == {"Bearer pod-token"}


def test_a_restart_does_not_move_the_deadline(api: FakeApi, account: Path) -> None:
    api.now_s = CREATED_S + 100
    assert _keep(api, account, ttl_s=120, waits=1).pauses == [20]


def test_deletes_at_once_when_the_time_is_over_already(api: FakeApi, account: Path) -> None:
    api.now_s = CREATED_S + 86_400
    _keep(api, account, ttl_s=120, waits=1)
    assert len(api.deletions) == 1


def test_a_long_sleep_is_interrupted_to_look_again(api: FakeApi, account: Path) -> None:
    clock = _keep(api, account, ttl_s=2 * RECHECK_S + 7, waits=4)
    assert clock.pauses == [RECHECK_S, RECHECK_S, 7, RETRY_S]
    assert len(api.deletions) == 1


@pytest.mark.parametrize("status", [403, 500])
def test_a_refused_deletion_is_tried_again(api: FakeApi, account: Path, status: int) -> None:
    api.now_s = CREATED_S + 120
    api.statuses = [200, status]
    clock = _keep(api, account, ttl_s=120, waits=2)
    assert clock.pauses == [RETRY_S, RETRY_S]
    assert len(api.deletions) == 2


def test_an_api_server_that_is_away_is_waited_for(account: Path) -> None:
    gone = FakeApi()
    gone.server_close()
    assert _keep(gone, account, ttl_s=1, waits=3).pauses == [SOON_S] * 3
    assert not (account / "kept").exists()


@pytest.mark.parametrize("status", [401, 403, 503])
def test_it_is_ready_only_when_the_api_server_has_answered_it(
    api: FakeApi, account: Path, status: int
) -> None:
    api.statuses = [status]
    _keep(api, account, ttl_s=120, waits=1)
    assert not (account / "kept").exists()
    assert _keep(api, account, ttl_s=120, waits=1).pauses == [119]
    assert (account / "kept").exists()


def _response(body: bytes, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.0 200 OK", *headers, b"Content-Length: %d" % len(body), b"", body)
    return b"\r\n".join(lines)


BROKEN = {
    "cut off": b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n{",
    "closed": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a long line": b"HTTP/1.0 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.0 200 OK\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
    "a wrong length": b"HTTP/1.0 200 OK\r\nContent-Length: many\r\n\r\n{}",
    "no JSON": _response(b"<html>Bad Gateway</html>"),
    "no text": _response(b"\xff\xfe\x00"),
    "deep": _response(b"[" * 100_000),
    "a list": _response(b"[]"),
    "null": _response(b"null"),
    "a number": _response(b"7"),
    "empty": _response(b"{}"),
    "no metadata": _response(b'{"metadata": null}'),
    "no uid": _response(b'{"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}'),
    "no time": _response(b'{"metadata": {"uid": "u"}}'),
    "a null time": _response(b'{"metadata": {"uid": "u", "creationTimestamp": null}}'),
    "a wrong time": _response(b'{"metadata": {"uid": "u", "creationTimestamp": "soon"}}'),
    "a wrong date": _response(b"{}", b"Date: soon"),
    "a far date": _response(b"{}", b"Date: Mon, 99 Jan 99999 99:99:99 GMT"),
}


@pytest.mark.parametrize("response", BROKEN.values(), ids=BROKEN)
def test_a_response_that_cannot_be_read_is_asked_for_again(
    api: FakeApi, account: Path, response: bytes
) -> None:
    api.broken = [response]
    clock = _keep(api, account, ttl_s=120, waits=2)
    assert clock.pauses == [SOON_S, 119]
    assert api.deletions == []
    assert (account / "kept").exists()


def test_a_deletion_whose_response_cannot_be_read_is_asked_for_again(
    api: FakeApi, account: Path
) -> None:
    api.now_s = CREATED_S + 120
    deadline = Deadline(path=PATH, ttl_s=120, ready_file=account / "kept")
    clock = FakeTime(api, waits=2)
    server = ApiServer(api.url, account=account)
    look = server.get

    def get(path: str) -> Answer:
        found = look(path)
        api.broken = [b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n{"]
        return found

    server.get = get  # type: ignore[method-assign]
    keep_deadline(deadline, server, wait=clock.wait)
    assert clock.pauses == [RETRY_S, RETRY_S]
    assert len(api.deletions) == 2


def test_an_object_that_is_gone_is_not_deleted(api: FakeApi, account: Path) -> None:
    _keep(api, account, ttl_s=1, waits=2, path="/api/v1/namespaces/other")
    assert api.deletions == []


def _environ(**changes: str) -> dict[str, str]:
    return {
        "AIPERF_NAMESPACE": "bench",
        "AIPERF_ANCHOR": "anchor-x",
        "AIPERF_DEADLINE_DELETES": "namespace",
        "AIPERF_TTL_SECONDS": "90",
        "AIPERF_READY_FILE": "/tmp/kept",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        **changes,
    }


@pytest.mark.parametrize(
    ("deletes", "path"),
    [("namespace", PATH), ("anchor", f"{PATH}/configmaps/anchor-x")],
)
def test_the_namespace_or_the_anchor_is_deleted_as_the_stack_says(
    tmp_path: Path, deletes: str, path: str
) -> None:
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    deadline, _ = read_deadline(_environ(AIPERF_DEADLINE_DELETES=deletes), account=tmp_path)
    assert deadline == Deadline(path=path, ttl_s=90, ready_file=Path("/tmp/kept"))


def test_outside_a_pod_the_missing_variable_is_named(tmp_path: Path) -> None:
    environ = _environ()
    del environ["KUBERNETES_SERVICE_HOST"]
    with pytest.raises(EnvironmentProblem, match="KUBERNETES_SERVICE_HOST is not set"):
        read_deadline(environ, account=tmp_path)


def test_a_pod_without_a_service_account_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no service account"):
        read_deadline(_environ(), account=tmp_path)
