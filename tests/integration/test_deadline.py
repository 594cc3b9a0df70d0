"""The deadline pod with an API server that has two objects."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import certifi
import pytest

from aiperf_svc.adapters.cluster.api.pod_client import ApiServer, Response
from aiperf_svc.adapters.cluster.teardown.deadline import (
    FIRST_RETRY_S,
    RECHECK_S,
    RENEW_S,
    RETRY_S,
    Deadline,
    Expiring,
    keep_deadline,
    read_deadline,
)
from aiperf_svc.domain.errors import EnvironmentProblem
from tests.support.threaded_server import in_thread

CREATED_S = 1_795_000_000
PATH = "/api/v1/namespaces/bench"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/bench/leases/owner-x"
BUDGET = "/apis/policy/v1/namespaces/bench/poddisruptionbudgets/benchmark-x"


class FakeApi(ThreadingHTTPServer):
    """Serves objects by path with its own clock, and records deletions."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.now_s = CREATED_S
        self.created_s = {PATH: CREATED_S}
        """Creation time of each object by path."""
        self.statuses: list[int] = []
        """Responses to send before the regular ones."""
        self.authorizations: list[str] = []
        self.deletions: list[dict[str, Any]] = []
        self.renewals: list[str] = []
        """Renewal times written to the Lease."""
        self.annotations: dict[str, str] = {}
        """Annotations of each object."""
        self.broken: list[bytes] = []
        """Raw responses to send before the regular ones."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeApi

    def do_GET(self) -> None:
        created_s = self.server.created_s.get(self.path, CREATED_S)
        created = datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {"uid": f"uid-{created_s}", "creationTimestamp": created}
        self._respond({"metadata": {**metadata, "annotations": self.server.annotations}})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.renewals.append(body["metadata"]["annotations"]["aiperf.dev/renewed"])
        self._respond(body)

    def do_DELETE(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.deletions.append({"path": self.path, "at_s": self.server.now_s, **body})
        self._respond({"status": "Success"})

    def _respond(self, body: dict[str, Any]) -> None:
        self.server.authorizations.append(self.headers["Authorization"])
        if self.server.broken:
            self.wfile.write(self.server.broken.pop(0))
            return
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        data = json.dumps(body).encode()
        # `send_response` would add the machine's own date.
        self.send_response_only(status if self.path in self.server.created_s else 404)
        stamp = datetime.fromtimestamp(self.server.now_s, UTC)
        self.send_header("Date", format_datetime(stamp, usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class FakeTime:
    """Replaces waiting: advances the server's clock, and reports a stop on the last of `waits`."""

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
    with in_thread(server):
        yield server


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("pod-token\n")
    return tmp_path


def _keep(api: FakeApi, account: Path, *, ttl_s: float, waits: int, path: str = PATH) -> FakeTime:
    clock = FakeTime(api, waits=waits)
    keep_deadline(_deadline(account, path, ttl_s), _server(api, account), wait=clock.wait)
    return clock


def _deadline(account: Path, path: str, ttl_s: float, *others: Expiring) -> Deadline:
    stack = Expiring(path=path, ttl_s=ttl_s)
    return Deadline(objects=(stack, *others), ready_file=account / "kept")


def _server(api: FakeApi, account: Path) -> ApiServer:
    return ApiServer(api.url, account=account)


def test_sleeps_until_creation_plus_ttl_and_then_deletes(api: FakeApi, account: Path) -> None:
    clock = _keep(api, account, ttl_s=120, waits=2)
    assert clock.pauses == [120, RETRY_S]
    assert [(d["path"], d["preconditions"]) for d in api.deletions] == [
        (PATH, {"uid": f"uid-{CREATED_S}"})
    ]
    assert set(api.authorizations) == {"Bearer pod-token"}


@pytest.mark.parametrize(("written", "pause"), [("90", 90), ("600", 120), ("soon", 120)])
def test_annotation_can_only_shorten_the_ttl(
    api: FakeApi, account: Path, written: str, pause: float
) -> None:
    api.annotations = {"aiperf.dev/ttl-seconds": written}
    assert _keep(api, account, ttl_s=120, waits=1).pauses == [pause]


def test_a_restart_does_not_move_the_deadline(api: FakeApi, account: Path) -> None:
    api.now_s = CREATED_S + 100
    assert _keep(api, account, ttl_s=120, waits=1).pauses == [20]


def test_stack_past_its_deadline_is_deleted_at_once(api: FakeApi, account: Path) -> None:
    api.now_s = CREATED_S + 86_400
    _keep(api, account, ttl_s=120, waits=1)
    assert len(api.deletions) == 1


def test_long_sleep_is_interrupted_to_check_again(api: FakeApi, account: Path) -> None:
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


def test_deadline_waits_for_an_unreachable_api_server(account: Path) -> None:
    gone = FakeApi()
    gone.server_close()
    assert _keep(gone, account, ttl_s=1, waits=3).pauses == [FIRST_RETRY_S] * 3
    assert not (account / "kept").exists()


@pytest.mark.parametrize("status", [401, 403, 503])
def test_deadline_is_ready_after_an_api_response(api: FakeApi, account: Path, status: int) -> None:
    api.statuses = [status]
    _keep(api, account, ttl_s=120, waits=1)
    assert not (account / "kept").exists()
    assert _keep(api, account, ttl_s=120, waits=1).pauses == [119]
    assert (account / "kept").exists()


def test_lease_is_renewed_until_the_time_is_over(api: FakeApi, account: Path) -> None:
    api.created_s[LEASE] = CREATED_S
    clock = FakeTime(api, waits=4)
    deadline = Deadline(
        objects=(Expiring(path=PATH, ttl_s=70),), ready_file=account / "kept", lease=LEASE
    )
    keep_deadline(deadline, _server(api, account), wait=clock.wait)
    assert clock.pauses == [RENEW_S, RENEW_S, 10.0, RETRY_S]
    assert len(api.renewals) == 4
    assert all(each.endswith("Z") for each in api.renewals)
    assert len(api.deletions) == 1


def test_failed_lease_renewal_does_not_move_deadline(api: FakeApi, account: Path) -> None:
    clock = FakeTime(api, waits=3)
    deadline = Deadline(
        objects=(Expiring(path=PATH, ttl_s=15),), ready_file=account / "kept", lease=LEASE
    )
    keep_deadline(deadline, _server(api, account), wait=clock.wait)
    assert clock.pauses == [RETRY_S, 5.0, RETRY_S]
    assert len(api.deletions) == 1


def test_lease_path_is_read_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    deadline, _ = read_deadline(_environ(AIPERF_LEASE="owner-x"), account=tmp_path)
    assert deadline.lease == LEASE


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
def test_unreadable_response_is_requested_again(
    api: FakeApi, account: Path, response: bytes
) -> None:
    api.broken = [response]
    clock = _keep(api, account, ttl_s=120, waits=2)
    assert clock.pauses == [FIRST_RETRY_S, 119]
    assert api.deletions == []
    assert (account / "kept").exists()


def test_deletion_with_unreadable_response_is_repeated(api: FakeApi, account: Path) -> None:
    api.now_s = CREATED_S + 120
    deadline = _deadline(account, PATH, 120)
    clock = FakeTime(api, waits=2)
    server = _server(api, account)
    get_whole = server.get

    def get(path: str) -> Response:
        found = get_whole(path)
        api.broken = [b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n{"]
        return found

    server.get = get  # type: ignore[method-assign]
    keep_deadline(deadline, server, wait=clock.wait)
    assert clock.pauses == [RETRY_S, RETRY_S]
    assert len(api.deletions) == 2


def test_missing_object_is_not_deleted(api: FakeApi, account: Path) -> None:
    _keep(api, account, ttl_s=1, waits=2, path="/api/v1/namespaces/other")
    assert api.deletions == []


HELD = Expiring(path=BUDGET, ttl_s=60, is_optional=True)


def _keep_both(api: FakeApi, account: Path, *, waits: int) -> FakeTime:
    clock = FakeTime(api, waits=waits)
    keep_deadline(_deadline(account, PATH, 200, HELD), _server(api, account), wait=clock.wait)
    return clock


def test_budget_and_stack_end_at_their_own_times(api: FakeApi, account: Path) -> None:
    api.created_s[BUDGET] = CREATED_S + 5
    clock = _keep_both(api, account, waits=4)
    assert clock.pauses[:2] == [65, RETRY_S]
    assert [(d["path"], d["preconditions"]["uid"]) for d in api.deletions] == [
        (BUDGET, f"uid-{CREATED_S + 5}")
    ] * 3


def test_missing_budget_is_searched_until_the_end(api: FakeApi, account: Path) -> None:
    assert _keep_both(api, account, waits=5).pauses == [60, 60, 60, 20, RETRY_S]
    assert [deletion["path"] for deletion in api.deletions] == [PATH]
    assert (account / "kept").exists()


def test_budget_created_between_checks_has_its_full_time(api: FakeApi, account: Path) -> None:
    clock = FakeTime(api, waits=3)

    def wait(seconds: float) -> bool:
        # An `up` creates it when this pod is ready.
        api.created_s.setdefault(BUDGET, api.now_s + 7)
        return clock.wait(seconds)

    keep_deadline(_deadline(account, PATH, 200, HELD), _server(api, account), wait=wait)
    assert clock.pauses == [60, 7, RETRY_S]
    assert [deletion["path"] for deletion in api.deletions] == [BUDGET]


@pytest.mark.parametrize("status", [403, 409, 500])
def test_undeletable_budget_does_not_keep_the_stack(
    api: FakeApi, account: Path, status: int
) -> None:
    api.created_s[BUDGET] = CREATED_S
    api.now_s = CREATED_S + 200
    # The stack is found and deleted; the budget is found and cannot be deleted.
    api.statuses = [200, 200, 200, status]
    assert _keep_both(api, account, waits=1).pauses == [RETRY_S]
    assert [deletion["path"] for deletion in api.deletions] == [PATH, BUDGET]


def test_invisible_stack_is_not_kept(api: FakeApi, account: Path) -> None:
    api.created_s[BUDGET] = CREATED_S
    api.statuses = [403]
    assert _keep_both(api, account, waits=1).pauses == [FIRST_RETRY_S]
    assert not (account / "kept").exists()


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
    ("deletes", "path"), [("namespace", PATH), ("anchor", f"{PATH}/configmaps/anchor-x")]
)
def test_namespace_or_anchor_is_deleted(tmp_path: Path, deletes: str, path: str) -> None:
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    deadline, _ = read_deadline(_environ(AIPERF_DEADLINE_DELETES=deletes), account=tmp_path)
    stack = Expiring(path=path, ttl_s=90)
    assert deadline == Deadline(objects=(stack,), ready_file=Path("/tmp/kept"))


def test_budget_is_the_one_that_the_stack_names(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    environ = _environ(AIPERF_BUDGET="benchmark-x", AIPERF_BUDGET_SECONDS="60")
    deadline, _ = read_deadline(environ, account=tmp_path)
    assert deadline.objects == (Expiring(path=PATH, ttl_s=90), HELD)


def test_missing_variable_outside_a_pod_is_named(tmp_path: Path) -> None:
    environ = _environ()
    del environ["KUBERNETES_SERVICE_HOST"]
    with pytest.raises(EnvironmentProblem, match="KUBERNETES_SERVICE_HOST is not set"):
        read_deadline(environ, account=tmp_path)


def test_missing_service_account_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no service account"):
        read_deadline(_environ(), account=tmp_path)


GRAPH = "/apis/example.com/v1/namespaces/bench/graphs/graph"


@pytest.mark.parametrize(
    ("operator_s", "namespace_s"), [(3, 4), (None, 10)], ids=["operator", "no operator"]
)
def test_custom_resources_are_deleted_before_the_namespace(
    operator_s: int | None, namespace_s: int, api: FakeApi, account: Path
) -> None:
    """The namespace goes at the next check after the resource is gone, or when time is up."""
    api.created_s[GRAPH] = CREATED_S
    over_s = CREATED_S + 100
    deadline = Deadline(
        objects=(Expiring(path=PATH, ttl_s=100, before=(GRAPH,), before_s=10),),
        ready_file=account / "kept",
    )
    clock = FakeTime(api, waits=12)

    def wait(seconds: float) -> bool:
        is_over = clock.wait(seconds)
        if operator_s is not None and api.now_s >= over_s + operator_s:
            api.created_s.pop(GRAPH, None)
        return is_over

    keep_deadline(deadline, _server(api, account), wait=wait)
    at_s = {each["path"]: each["at_s"] - over_s for each in reversed(api.deletions)}
    assert at_s == {GRAPH: 0, PATH: namespace_s}


def test_custom_resources_are_read_from_the_environment(account: Path) -> None:
    environ = {
        "AIPERF_NAMESPACE": "bench",
        "AIPERF_ANCHOR": "anchor-x",
        "AIPERF_DEADLINE_DELETES": "namespace",
        "AIPERF_TTL_SECONDS": "60",
        "AIPERF_READY_FILE": "/tmp/kept",
        "AIPERF_CUSTOM_RESOURCES": json.dumps(["/apis/example.com/v1/{namespace}/graphs/graph"]),
        "AIPERF_CUSTOM_RESOURCES_SECONDS": "30",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    (account / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    deadline, _ = read_deadline(environ, account=account)
    assert deadline.objects == (Expiring(path=PATH, ttl_s=60.0, before=(GRAPH,), before_s=30.0),)
