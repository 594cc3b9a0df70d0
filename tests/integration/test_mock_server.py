"""The mock server over real loopback sockets, watched by a bare client of this file's own."""

import base64
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.faults import FAULTS, HUGE_BYTES
from aiperf_svc.mock_server.processes import MockServerError
from aiperf_svc.mock_server.running import RunningMockServer, running

CHAT = "/v1/chat/completions"
HANG_GUARD_S = 20.0
"""How long a socket may be silent before a test gives up: no claim depends on it."""


def request_bytes(
    path: str = CHAT, *, headers: dict[str, str] | None = None, **body: object
) -> bytes:
    """One POST, ready to send; a chat stream unless the body says otherwise."""
    if path == CHAT:
        body = {"model": "m", "messages": [], "stream": True} | body
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: mock", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


class Client:
    """A connection that sends bytes and reads whole answers."""

    def __init__(self, server: RunningMockServer, *, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, server.port), timeout=HANG_GUARD_S)
        self._buffer = b""

    def send(self, data: bytes) -> "Client":
        self.socket.sendall(data)
        return self

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(self._buffer)
        self._buffer += data

    def until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer, of any framing."""
        head = self.until(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"Transfer-Encoding: chunked" not in head:
            length = head.partition(b"Content-Length: ")[2].partition(b"\r")[0]
            return status, self.exactly(int(length))
        body = b""
        while size := int(self.until(b"\r\n"), 16):
            body += self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        assert self.exactly(2) == b"\r\n"
        return status, body

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        with contextlib.suppress(EOFError):
            while True:
                self._more()
        return self._buffer

    def is_silent(self) -> bool:
        """Nothing is there to read."""
        return not self._buffer and not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def connected(server: RunningMockServer, **options: str) -> Iterator[Client]:
    client = Client(server, **options)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningMockServer]:
    """A server without delays, in one process; the tests of this module share its account."""
    with running(MockServerConfig(tokens=3)) as server:
        yield server


@pytest.fixture(scope="module")
def witness() -> Iterator[RunningMockServer]:
    """A server with delays that keeps rows, in two processes."""
    config = MockServerConfig(tokens=4, ttft="20ms", itl="3ms", truth=True, processes=2)
    with running(config) as server:
        yield server


def events_of(body: bytes) -> list[bytes]:
    return [part.removeprefix(b"data: ") for part in body.split(b"\n\n")[:-1]]


# Answers


def test_a_stream_ends_with_done_and_gives_usage_when_asked(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        client.send(request_bytes(stream_options={"include_usage": True}))
        status, body = client.answer()
    *_, usage, done = events_of(body)
    assert (status, done) == (200, b"[DONE]")
    assert json.loads(usage)["usage"]["completion_tokens"] == 3


def test_every_endpoint_answers_on_one_kept_connection(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        chat = json.loads(client.send(request_bytes(stream=False)).answer()[1])
        assert chat["choices"][0]["message"]["content"] == "the quick model"
        text = json.loads(client.send(request_bytes("/v1/completions", prompt="a b")).answer()[1])
        assert text["usage"]["prompt_tokens"] == 2
        wanted = {"input": ["a", "b"], "encoding_format": "base64"}
        found = json.loads(client.send(request_bytes("/v1/embeddings", **wanted)).answer()[1])
        assert len(base64.b64decode(found["data"][1]["embedding"])) == 8 * 4
        models = json.loads(client.send(b"GET /v1/models HTTP/1.1\r\n\r\n").answer()[1])
        assert models["data"][0]["id"] == "mock-model"
        assert client.send(b"GET /healthz HTTP/1.1\r\n\r\n").answer()[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 3\r\n\r\n{x}", 400),
        (request_bytes(headers={"X-Mock-Fault": "no-such-fault"}), 400),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so_and_the_connection_stays(
    plain: RunningMockServer, data: bytes, status: int
) -> None:
    with connected(plain) as client:
        assert client.send(data).answer()[0] == status
        assert client.send(request_bytes()).answer()[0] == 200


def test_bytes_that_are_not_http_close_the_connection(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        assert client.send(b"\x16\x03\x01 hello\r\n\r\n").answer()[0] == 400
        assert client.rest() == b""


# Framing


def test_a_request_split_at_every_byte_is_the_same_request(plain: RunningMockServer) -> None:
    data = request_bytes(headers={"X-Request-Id": "split"}, max_tokens=1)
    with connected(plain) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = client.send(data).answer()
        for at in range(1, len(data)):
            client.send(data[:at])
            client.send(data[at:])
            assert client.answer() == whole
        for at in range(len(data)):
            client.send(data[at : at + 1])
        assert client.answer() == whole


def test_pipelined_requests_are_answered_in_order(plain: RunningMockServer) -> None:
    lengths = [1, 3, 2, 1, 1, 3]
    with connected(plain) as client:
        client.send(b"".join(request_bytes(max_tokens=tokens) for tokens in lengths))
        events = [len(events_of(client.answer()[1])) for _ in lengths]
    assert events == [tokens + 2 for tokens in lengths]


def test_requests_pipelined_behind_a_paced_stream_wait_for_it(witness: RunningMockServer) -> None:
    with connected(witness) as client:
        client.send(request_bytes(max_tokens=3) + request_bytes(max_tokens=2)[:40])
        client.send(request_bytes(max_tokens=2)[40:])
        assert [len(events_of(client.answer()[1])) for _ in range(2)] == [5, 4]


def test_connection_close_is_honoured(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        client.send(request_bytes(headers={"Connection": "close"}))
        assert client.answer()[0] == 200
        assert client.rest() == b""


def test_a_client_that_waits_for_continue_gets_it(plain: RunningMockServer) -> None:
    head, _, body = request_bytes(headers={"Expect": "100-continue"}).partition(b"\r\n\r\n")
    with connected(plain) as client:
        client.send(head + b"\r\n\r\n")
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        assert client.send(body).answer()[0] == 200


def test_a_large_body_is_taken_whole(plain: RunningMockServer) -> None:
    words = "word " * 400_000
    with connected(plain) as client:
        client.send(request_bytes(stream=False, messages=[{"role": "user", "content": words}]))
        assert json.loads(client.answer()[1])["usage"]["prompt_tokens"] == 400_000


# Faults


@pytest.mark.parametrize("by_header", [True, False])
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_happens_when_asked_for_and_to_that_request_only(
    plain: RunningMockServer, name: str, by_header: bool
) -> None:
    if by_header:
        data = request_bytes(headers={"X-Mock-Fault": name})
    else:
        data = request_bytes(model=f"mock-{name}")
    hangs = plain.truth()["hangs"] + (name in ("hang", "stall"))
    with connected(plain) as client:
        client.send(data)
        _check_fault(client, name)
        deadline = time.monotonic() + HANG_GUARD_S
        while plain.truth()["hangs"] < hangs:
            assert time.monotonic() < deadline, "the request does not hang"
        if name == "hang":
            assert client.is_silent()
    with connected(plain) as client:
        assert client.send(request_bytes()).answer()[0] == 200


def _check_fault(client: Client, name: str) -> None:
    if name == "hang":
        return  # nothing will come
    if name in ("stall", "never-ends"):
        for _ in range(1 if name == "stall" else 10):
            client.until(b"data: ")
    elif name in ("close", "garbage", "short-body", "bad-chunk-size", "cut", "no-last-chunk"):
        received = client.rest()
        assert (received == b"") is (name == "close")
        assert not received.endswith(b"0\r\n\r\n")
    elif name == "reset":
        with pytest.raises(ConnectionResetError):
            client.rest()
    else:
        _check_answer(name, *client.answer())


def _check_answer(name: str, status: int, body: bytes) -> None:
    assert status == 200
    if name == "invalid-utf8":
        with pytest.raises(UnicodeDecodeError):
            body.decode()
    elif name == "malformed":
        with pytest.raises(json.JSONDecodeError):
            json.loads(events_of(body)[1])
    elif name == "huge-chunk":
        assert len(body) > HUGE_BYTES
    elif name == "error-in-stream":
        assert b'"error"' in body
    elif name == "wrong-content-type":
        assert b"<!doctype html>" in body
    elif name == "empty":
        assert b'"content":"the"' not in body
    elif name == "crlf":
        assert b"\n\n" not in body
    else:
        assert name in ("no-done", "no-usage", "one-byte-writes", "one-chunk"), f"{name}: no check"
        assert b" quick" in body
        assert (b"[DONE]" in body) is (name != "no-done")


def test_a_status_can_be_asked_for(plain: RunningMockServer) -> None:
    with connected(plain) as client:
        status, body = client.send(request_bytes(model="mock-error-429")).answer()
    assert (status, json.loads(body)["error"]["code"]) == (429, 429)


def test_fault_rates_are_met_and_accounted() -> None:
    config = MockServerConfig(tokens=1, error_rate=0.3, error_status=503, malformed_rate=0.2)
    asked = 1_000
    with running(config) as server:
        with connected(server) as client:
            client.send(request_bytes() * asked)
            answers = [client.answer() for _ in range(asked)]
        truth = server.truth()
    errors = sum(status == 503 for status, _ in answers)
    malformed = sum(b'"content":\n\n' in body for _, body in answers)
    assert errors == pytest.approx(300, abs=60)  # four standard deviations
    assert malformed == pytest.approx(200, abs=51)
    assert (truth["errors"], truth["completed"]) == (errors, asked - errors)


# The truth


def test_rows_agree_with_what_a_client_saw(witness: RunningMockServer) -> None:
    witness.reset()
    seen: dict[str, list[int]] = {}
    for index in range(5):
        request_id = f"row-{index}"
        with connected(witness) as client:
            before_ns = time.time_ns()
            client.send(request_bytes(headers={"X-Request-ID": request_id}))
            client.until(b"\r\n\r\n")
            stamps = [before_ns, time.time_ns()]
            for _ in range(4):
                client.until(b'"content":')
                stamps.append(time.time_ns())
            client.until(b"0\r\n\r\n")
            seen[request_id] = [*stamps, time.time_ns()]
    rows = {row["request_id"]: row for row in witness.truth(rows=True)["rows"]}
    assert rows.keys() == seen.keys()
    for request_id, (before_ns, head_ns, *chunk_ns, after_ns) in seen.items():
        row = rows[request_id]
        assert before_ns <= row["arrival_wall_ns"] <= row["head_wall_ns"] <= head_ns
        assert len(row["chunk_wall_ns"]) == 4
        assert all(sent <= got for sent, got in zip(row["chunk_wall_ns"], chunk_ns, strict=True))
        assert row["end_wall_ns"] == row["chunk_wall_ns"][-1] <= after_ns
        assert row["outcome"] == "completed"


def test_no_token_is_sent_early(witness: RunningMockServer) -> None:
    witness.reset()
    with connected(witness) as client:
        client.send(request_bytes()).answer()
    [row] = witness.truth(rows=True)["rows"]
    first, *_, last = row["chunk_wall_ns"]
    assert first - row["arrival_wall_ns"] >= 20_000_000
    assert last - row["arrival_wall_ns"] >= 20_000_000 + 3 * 3_000_000


def test_totals_over_processes_are_exact_while_each_has_its_share() -> None:
    config = MockServerConfig(processes=3, tokens=2, ttft="1ms", itl="1ms", truth=True)
    clients, each = 30, 5
    with running(config) as server:
        truths: list[dict[str, Any]] = []
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(connected(server)) for _ in range(clients)]
            for round_index in range(each):
                for connection in connections:
                    connection.send(request_bytes())
                if round_index == each // 2:
                    truths.append(server.truth())  # it works while the load runs
                for connection in connections:
                    assert connection.answer()[0] == 200
        truth = server.truth(rows=True)
    total = clients * each
    assert truths[0]["requests"] <= total
    assert (truth["requests"], truth["completed"], truth["in_flight"]) == (total, total, 0)
    assert sum(process["requests"] for process in truth["processes"]) == total
    assert len(truth["rows"]) == total
    assert truth["writes"] == total * 3
    assert truth["max_in_flight_is_exact"]
    assert 2 <= truth["max_in_flight"] <= clients
    assert {row["process"] for row in truth["rows"]} == {
        index for index, process in enumerate(truth["processes"]) if process["requests"]
    }


def test_askers_of_different_processes_do_not_disturb_each_other() -> None:
    with running(MockServerConfig(processes=3)) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(24)]
        for connection in connections:
            connection.send(b"GET /truth HTTP/1.1\r\n\r\n" * 3)
        for connection in connections:
            for _ in range(3):
                status, body = connection.answer()
                assert status == 200
                assert len(json.loads(body)["processes"]) == 3


def test_a_client_that_leaves_is_accounted_as_disconnected(witness: RunningMockServer) -> None:
    witness.reset()
    with connected(witness) as client:
        client.send(request_bytes(headers={"X-Request-Id": "gone"}, max_tokens=4))
        client.until(b"\r\n\r\n")
    with connected(witness) as client:
        client.send(request_bytes(headers={"X-Request-Id": "hung", "X-Mock-Fault": "hang"}))
    with connected(witness) as client:
        client.send(request_bytes(headers={"X-Request-Id": "cut", "X-Mock-Fault": "cut"})).rest()
    truth = _settled(witness, requests=3)
    outcomes = {row["request_id"]: row["outcome"] for row in truth["rows"]}
    assert outcomes == {"gone": "disconnected", "hung": "disconnected", "cut": "cut"}
    counted = {name: truth[name] for name in ("disconnected", "cuts", "completed", "hangs")}
    assert counted == {"disconnected": 2, "cuts": 1, "completed": 0, "hangs": 1}


def _settled(server: RunningMockServer, *, requests: int) -> dict[str, Any]:
    """The truth once so many requests have come and none is in flight."""
    deadline = time.monotonic() + HANG_GUARD_S
    while True:
        truth = server.truth(rows=True)
        if truth["requests"] == requests and truth["in_flight"] == 0:
            return truth
        assert time.monotonic() < deadline, truth


def test_a_slow_reader_gets_every_byte(witness: RunningMockServer) -> None:
    witness.reset()
    with connected(witness) as client:
        client.send(request_bytes(headers={"X-Mock-Fault": "huge-chunk"}))
        client.until(b"\r\n\r\n")
        second = Client(witness)
        second.send(request_bytes()).answer()  # the server has other things to do meanwhile
        second.close()
        body_size = 0
        while size := int(client.until(b"\r\n"), 16):
            body_size += len(client.exactly(size))
            client.exactly(2)
    assert body_size > HUGE_BYTES
    assert _settled(witness, requests=2)["bytes_out"] > HUGE_BYTES


# Behaviour over time


def test_a_slow_start_answers_503_and_then_serves() -> None:
    with running(MockServerConfig(slow_start="300ms")) as server, connected(server) as client:
        health = b"GET /healthz HTTP/1.1\r\n\r\n"
        statuses = [client.send(health).answer()[0]]
        deadline = time.monotonic() + HANG_GUARD_S
        while statuses[-1] != 200 and time.monotonic() < deadline:
            statuses.append(client.send(health).answer()[0])
        assert (statuses[0], statuses[-1]) == (503, 200)
        assert client.send(request_bytes()).answer()[0] == 200


def test_a_freeze_stops_every_process_and_delays_what_is_on_its_way() -> None:
    config = MockServerConfig(
        processes=2, truth=True, tokens=40, itl="5ms", freeze_at="50ms", freeze_for="250ms"
    )
    with running(config) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(24)]
        for connection in connections:
            connection.send(request_bytes())
        for connection in connections:
            connection.answer()
        truth = server.truth(rows=True)
    rows = truth["rows"]
    assert len({row["process"] for row in rows}) == 2
    for row in rows:
        began_ns, ended_ns = truth["frozen_wall_ns"][row["process"]]
        assert ended_ns - began_ns > 0
        sent = row["chunk_wall_ns"]
        assert max(b - a for a, b in itertools.pairwise(sent)) >= 250_000_000
        assert sent[-1] - row["arrival_wall_ns"] >= 250_000_000 + 39 * 5_000_000
        assert not [at for at in sent if began_ns < at < ended_ns]


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    config = MockServerConfig(keepalive_timeout="100ms", tokens=2, itl="300ms")
    with running(config) as server, connected(server) as idle, connected(server) as busy:
        assert len(events_of(busy.send(request_bytes()).answer()[1])) == 4
        assert idle.rest() == b""
        assert busy.rest() == b""


def test_the_api_key_is_required_by_all_but_health() -> None:
    with running(MockServerConfig(api_key="secret")) as server, connected(server) as client:
        assert client.send(request_bytes()).answer()[0] == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert client.send(request_bytes(headers=wrong)).answer()[0] == 401
        right = {"authorization": "Bearer secret"}
        assert client.send(request_bytes(headers=right)).answer()[0] == 200
        assert client.send(b"GET /healthz HTTP/1.1\r\n\r\n").answer()[0] == 200
        truth = server.truth()
    assert (truth["requests"], truth["errors"], truth["completed"]) == (3, 2, 1)


def test_several_hosts_share_each_of_several_ports() -> None:
    config = MockServerConfig(host="127.0.0.1,127.0.0.2", ports=2, processes=2)
    with running(config) as server:
        assert len(set(server.urls)) == 4
        for host in ("127.0.0.1", "127.0.0.2"):
            with connected(server, host=host) as client:
                assert client.send(request_bytes()).answer()[0] == 200


# Processes


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_gone(pidfds: list[int]) -> None:
    """Waits until every process behind the descriptors has ended."""
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], HANG_GUARD_S)[0], "a process is left"
        os.close(pidfd)


def test_nothing_is_left_after_a_stop() -> None:
    with running(MockServerConfig(processes=3)) as server:
        children = _children(server.pid)
        assert len(children) == 3
        pidfds = [os.pidfd_open(pid) for pid in (*children, server.pid)]
        port = server.port
    _wait_gone(pidfds)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def _started(*args: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "aiperf_svc.mock_server", *args],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_it_with_status_0(number: signal.Signals) -> None:
    with _started("--processes", "2") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on http://127.0.0.1:")
        pidfds = [os.pidfd_open(pid) for pid in _children(process.pid)]
        process.send_signal(number)
        _, errors = process.communicate(timeout=HANG_GUARD_S)
    assert (process.returncode, errors) == (0, b"")
    _wait_gone(pidfds)


def test_a_killed_parent_takes_its_children_along() -> None:
    with _started("--processes", "2", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        pidfds = [os.pidfd_open(pid) for pid in _children(process.pid)]
        process.kill()
        process.wait(HANG_GUARD_S)
    _wait_gone(pidfds)


def test_a_dead_child_ends_the_server_with_an_error() -> None:
    with _started("--processes", "2") as process:
        assert process.stdout is not None
        process.stdout.readline()
        victim, other = _children(process.pid)
        pidfd = os.pidfd_open(other)
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=HANG_GUARD_S)
    assert process.returncode == 1
    assert f"serving process {victim} died".encode() in errors
    _wait_gone([pidfd])


def test_a_taken_port_is_a_clear_error_and_not_shared(
    plain: RunningMockServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(MockServerError, match="status 1 before it listened"),
        running(MockServerConfig(port=plain.port)),
    ):
        pass
    assert (
        f"cannot listen on 127.0.0.1:{plain.port}: Address already in use" in capfd.readouterr().err
    )


def test_a_bad_flag_is_refused_with_status_2() -> None:
    with _started("--ttft", "soon") as process:
        out, errors = process.communicate(timeout=HANG_GUARD_S)
    assert (process.returncode, out) == (2, b"")
    assert errors.startswith(b"error: --ttft: 'soon' is not a duration; expected")


def test_connections_beyond_the_file_limit_are_closed_and_counted() -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40));"
        "sys.argv = ['mock', '--port', '0'];"
        "from aiperf_svc.mock_server.__main__ import main; sys.exit(main())"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(b":", 1)[1])
        asker = socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD_S)
        others = [
            socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD_S) for _ in range(60)
        ]
        closed = 0
        while select.select([others[-1]], [], [], HANG_GUARD_S)[0] and not closed:
            closed = sum(bool(select.select([other], [], [], 0)[0]) for other in others)
        asker.sendall(b"GET /truth HTTP/1.1\r\nConnection: close\r\n\r\n")
        with asker.makefile("rb") as stream:
            truth = json.loads(stream.read().partition(b"\r\n\r\n")[2])
        for other in others:
            other.close()
        asker.close()
        process.terminate()
        assert process.wait(HANG_GUARD_S) == 0
    assert truth["refused"] == closed > 0
    assert truth["open_connections"] == 61 - closed


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key


def test_tls_serves_the_same_answers(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    config = MockServerConfig(tls_cert=str(cert), tls_key=str(key), tokens=3, itl="1ms", truth=True)
    context = ssl.create_default_context(cafile=str(cert))
    with running(config) as server:
        assert server.url.startswith("https://")
        with connected(server) as client:
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
            for size in (10, 100_000):
                content = "x" * size
                client.send(request_bytes(messages=[{"role": "user", "content": content}]))
                assert len(events_of(client.answer()[1])) == 5
        truth = server.truth(rows=True)
    assert (truth["completed"], len(truth["rows"])) == (2, 2)
    assert truth["unstamped_arrivals"] > 0  # the kernel stamps no decrypted bytes, and rows say so


def test_threads_of_clients_never_exceed_their_own_concurrency(witness: RunningMockServer) -> None:
    witness.reset()
    threads, each = 6, 4

    def client() -> None:
        with connected(witness) as connection:
            for _ in range(each):
                connection.send(request_bytes()).answer()

    running_threads = [threading.Thread(target=client) for _ in range(threads)]
    for thread in running_threads:
        thread.start()
    for thread in running_threads:
        thread.join()
    truth = witness.truth(rows=True)
    assert truth["requests"] == threads * each
    assert 1 <= truth["max_in_flight"] <= threads
