"""Telemetry of whole runs, and of servers that have no page, a wrong one or too much of it."""

import asyncio
import csv
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from arro3.io import read_parquet
from endless_server import endless_server
from in_one_loop import config, server, stack, talks

from aiperf_svc.adapters.telemetry.pages import MAX_PAGE_BYTES, FetchedPage, PageClient
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.series import server_load
from aiperf_svc.services.telemetry_reader import TelemetryReader

DCGM = (Path(__file__).parents[1] / "data/telemetry/dcgm.txt").read_text()
TTFT = "time_to_first_token_seconds"
SECOND_HOST = "127.0.0.2"
"""Another address of the same servers."""
POWER = "DCGM_FI_DEV_POWER_USAGE{"


@asynccontextmanager
async def pages(**texts: Any) -> AsyncIterator[str]:
    """A server with a page at each path; a text may be a function of the number of the read."""
    reads = dict.fromkeys(texts, 0)

    async def respond(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in texts:
            raise web.HTTPNotFound
        reads[name] += 1
        text = texts[name]
        return web.Response(text=text(reads[name]) if callable(text) else text)

    app = web.Application()
    app.router.add_get("/{name}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        await web.TCPSite(runner, SECOND_HOST, port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def with_telemetry(base: dict[str, Any], **telemetry: Any) -> dict[str, Any]:
    return base | {"telemetry": telemetry}


async def read_once(settings: dict[str, Any], *, namespace: str = "") -> list[SourceLog]:
    """What a reader has read of its sources after each was read twice."""
    reader = TelemetryReader(BenchmarkConfig.model_validate(settings), namespace=namespace)
    reading = asyncio.create_task(reader.run())
    await reader.stop()
    await reading
    return reader.logs


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("<html><body>Please log in</body></html>", "line 1 is no sample: <html><body>Please"),
        ("x 1\n" * (MAX_PAGE_BYTES // 4 + 1), "the page is over 4 MiB large"),
        ("", "the page has no samples"),
    ],
)
async def test_a_page_that_is_none_is_named(text: str, failure: str) -> None:
    async with pages(metrics=text) as url:
        base = config("http://127.0.0.1:1", concurrency=1, requests=1)
        # A page may take as long as the interval; a large one takes a busy machine a while.
        wanted = {"target": False, "server_metrics": [url], "interval": "30s"}
        (log,) = await read_once(with_telemetry(base, **wanted))
    assert not log.has_pages
    assert failure in log.failure


@pytest.mark.parametrize("kind", ["interim heads", "body", "chunk", "trailers"])
async def test_a_page_without_an_end_is_given_up_by_its_size(kind: str) -> None:
    with endless_server(kind) as endless:
        async with PageClient(no_tls) as client:
            page = await client.fetch(endless.url, timeout_s=60)
    assert re.search(r"over \d+ (MiB|KiB)", page.failure)


@asynccontextmanager
async def saying(*responses: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that responds with these bytes in turn, and closes the connection after those that
    say so and after the last; the URL of its page, and what it says of each connection."""
    left = list(responses)
    connections: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = b""
        connections.append("made")
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while left and b"Connection: close" not in said:
                await reader.readuntil(b"\r\n\r\n")
                said = left.pop(0)
                writer.write(said)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics", connections


def no_tls() -> ssl.SSLContext:
    raise AssertionError("pages without TLS wait for no certificates")


async def fetched(*responses: bytes, times: int = 1) -> tuple[list[FetchedPage], int]:
    """What a client has read, and on how many connections."""
    async with saying(*responses) as (url, connections), PageClient(no_tls) as client:
        return [await client.fetch(url, timeout_s=30) for _ in range(times)], len(connections)


OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 5\r\n\r\nup 1\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nup\r\n3\r\n 1\n\r\n0\r\n\r\n"
MOVED = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /metrics/\r\nContent-Length: 0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize(
    "responses",
    [
        (WHOLE,),
        (CHUNKED,),
        (EARLY + WHOLE,),
        (b"HTTP/1.0 200 OK\r\n\r\nup 1\n",),
        (MOVED + b"Connection: close", WHOLE),
        (*[MOVED + b"Connection: close"] * 5, WHOLE),
    ],
    ids=["length", "chunks", "early hints", "until it closes", "moved", "moved five times"],
)
async def test_a_page_is_read_however_it_is_sent(responses: tuple[bytes, ...]) -> None:
    (page,), _ = await fetched(*responses)
    assert (page.failure, page.text) == ("", "up 1\n")


@pytest.mark.parametrize(
    ("responses", "failure"),
    [
        ((EARLY * 100_000,), "headers of over 64 KiB"),
        ((OK + b"X: y\r\n" * 100_000,), "headers of over 64 KiB"),
        ((OK + b"Content-Length: 50\r\n\r\nup 1\n",), "closed the connection before the page was"),
        ((OK + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",), "compressed by gzip"),
        ((b"SSH-2.0-OpenSSH_9\r\n\r\n",), "no HTTP/1.1 status line"),
        ((MOVED.replace(b"/metrics/", b"file:///etc/passwd"),), "expected http or https"),
        ((b"HTTP/1.1 401 Unauthorized\r\n\r\n",), "401; telemetry.key_env names its key"),
        ((MOVED + b"Connection: close",) * 6, "over 5 redirects"),
    ],
)
async def test_a_response_that_is_no_page_is_named(
    responses: tuple[bytes, ...], failure: str
) -> None:
    (page,), _ = await fetched(*responses)
    assert failure in page.failure


async def test_pages_are_read_on_one_connection_and_one_that_was_closed_is_replaced() -> None:
    closing = WHOLE.replace(b"OK", b"OK, and then I close. Connection: close")
    for responses, connections in (([CHUNKED, WHOLE, WHOLE], 1), ([WHOLE, closing, WHOLE], 2)):
        pages, made = await fetched(*responses, times=3)
        assert [page.text for page in pages] == ["up 1\n"] * 3
        assert made == connections


async def heads(*responses: bytes, key: str, others: bytes = b"") -> list[str]:
    """What a client with a key sends to the server of a page, and to another one that `others` is
    the redirect from."""
    seen: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
            port = writer.get_extra_info("sockname")[1]
            moved = b"http://%s:%d/metrics" % (SECOND_HOST.encode(), port)
            is_first = len(seen) == 1
            writer.write(MOVED.replace(b"/metrics/", moved) if is_first and others else WHOLE)
        writer.close()

    async with await asyncio.start_server(respond, "0.0.0.0", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics"
        async with PageClient(no_tls, key=key, key_urls=[url]) as client:
            assert (await client.fetch(url, timeout_s=30)).text == "up 1\n"
    return seen


@pytest.mark.parametrize(
    ("key", "header"), [("abc.def", "Bearer abc.def"), ("me:open", "Basic bWU6b3Blbg==")]
)
async def test_a_page_is_asked_for_with_its_key_and_no_other_server_gets_it(
    key: str, header: str
) -> None:
    (head,) = await heads(key=key)
    assert f"\r\nAuthorization: {header}\r\n" in head
    first, redirected = await heads(key=key, others=MOVED)
    assert "Authorization" in first
    assert "Authorization" not in redirected


def contents(folder: Path) -> list[bytes]:
    """The contents of all files below a folder."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def test_the_key_of_pages_is_read_from_its_variable_and_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        if asked[-1] != "Bearer s3cret-token":
            raise web.HTTPUnauthorized
        return web.Response(text="up 1\n")

    monkeypatch.setenv("PAGES", "s3cret-token\n")
    app = web.Application()
    app.router.add_get("/metrics", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
        with server(tokens=3) as mock:
            base = config(mock.url, concurrency=2, requests=20)
            wanted = {"server_metrics": [url], "key_env": "PAGES"}
            async with stack(with_telemetry(base, **wanted), tmp_path) as run:
                summary = await run.results()
    finally:
        await runner.cleanup()
    sources = {each["url"]: each for each in summary["aiperf_svc"]["system"]["sources"]}
    assert sources[url]["failures"] == 0
    assert set(asked) == {"Bearer s3cret-token"}
    found = contents(tmp_path)
    assert found
    assert not [text for text in found if b"s3cret-token" in text]


async def test_a_key_that_no_header_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGES", "a\r\nX: y")
    base = config("http://127.0.0.1:1", concurrency=1, requests=1)
    wanted = {"target": False, "server_metrics": ["http://127.0.0.1:1"], "key_env": "PAGES"}
    (log,) = await read_once(with_telemetry(base, **wanted))
    assert "telemetry.key_env: expected a key of printable characters" in log.failure


@contextmanager
def silent(port: int) -> Iterator[str]:
    """An address at which connects get no response: its queue of them is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((SECOND_HOST, port))
        listening.listen(0)
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((SECOND_HOST, port))
        yield SECOND_HOST


async def test_a_page_is_read_from_the_next_address_of_a_name_if_the_first_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with saying(WHOLE) as (url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        with silent(port) as first:

            def getaddrinfo(host: str, *_asked: Any, **_more: Any) -> list[Any]:
                hosts = (first, "127.0.0.1") if host == "server" else (host,)
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port)) for h in hosts]

            monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
            async with PageClient(no_tls) as client:
                page = await client.fetch(f"http://server:{port}/metrics", timeout_s=30)
    assert (page.failure, page.text) == ("", "up 1\n")


async def test_a_name_of_which_no_address_takes_a_connection_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(host: str, *_asked: Any, **_more: Any) -> list[Any]:
        hosts = ("127.0.0.1", SECOND_HOST) if host == "server" else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 1)) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with PageClient(no_tls) as client:
        page = await client.fetch("http://server:1/metrics", timeout_s=30)
    assert "Connect call failed" in page.failure


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Sun, 01 Jan 99999999999999999999 00:00:00 GMT",
        "now",
    ],
)
async def test_a_date_that_no_clock_shows_is_no_distance_between_clocks(date: str) -> None:
    (page,), _ = await fetched(WHOLE.replace(b"OK", b"OK\r\nDate: " + date.encode()))
    assert (page.failure, page.text, page.off_s) == ("", "up 1\n", 0.0)


async def test_a_clock_that_is_an_hour_behind_is() -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    (page,), _ = await fetched(WHOLE.replace(b"OK", b"OK\r\nDate: " + date.encode()))
    assert page.off_s == pytest.approx(3600, abs=60)


async def test_telemetry_that_breaks_is_named_and_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(*_given: Any, **_more: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PageClient, "fetch", fetch)
    with server(tokens=3) as mock:
        base = config(mock.url, concurrency=2, requests=20)
        async with stack(with_telemetry(base, server_metrics=[mock.url]), tmp_path) as run:
            summary = await run.results()
    assert summary["request_count"]["avg"] == 20
    (source,) = summary["aiperf_svc"]["system"]["sources"]
    assert "reading has ended: a bug" in source["problem"]


async def test_a_target_without_a_page_is_no_source_and_a_page_that_was_asked_for_is() -> None:
    async with pages(other="up 1\n") as url:
        base = config(url, concurrency=1, requests=1)
        assert await read_once(with_telemetry(base)) == []
        (log,) = await read_once(with_telemetry(base, server_metrics=[url]))
    assert log.failure == "the server responds with status 404"


async def test_only_gpus_of_the_targets_pods_are_read_of_an_exporter_that_was_found() -> None:
    gpus = (
        ("0", "bench", "target-s-7d4b9c8f6-x2kqz"),
        ("1", "bench", "other-1"),
        ("2", "x", "target-s-7d4b9c8f6-x2kqz"),
    )
    text = "".join(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}",namespace="{namespace}",pod="{pod}"}} 300\n'
        for gpu, namespace, pod in gpus
    )
    idle = 'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 60\n'
    async with pages(used=text, idle=idle) as url:
        found = {
            "namespace": "gpus", "labels": {"app": "dcgm-exporter"}, "port": 9400,
            "pages": [f"{url}/used", f"{url}/idle"], "users": ["deployment/target-s"],
        }  # fmt: skip
        base = config("http://127.0.0.1:1", concurrency=1, requests=1)
        settings = with_telemetry(base, target=False, exporters=[found])
        (log,) = await read_once(settings, namespace="bench")
    assert log.url == f"{url}/used"
    assert [each.series.label("gpu") for each in log.series] == ["0"]


async def test_each_address_of_the_targets_name_is_a_server_with_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pages(metrics="vllm:num_requests_running 2\n") as url:
        port = int(url.rpartition(":")[2])

        def getaddrinfo(asked: str, *_asked: Any, **_more: Any) -> list[Any]:
            if asked != "replicas":
                return [(socket.AF_INET, 1, 6, "", (asked, port))]
            # Nothing listens on the third. The last is the first server's by another version of IP.
            hosts = ("127.0.0.1", SECOND_HOST, "127.0.0.9")
            found: list[Any] = [(socket.AF_INET, 1, 6, "", (host, port)) for host in hosts]
            return [*found, (socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        base = config(f"http://replicas:{port}", concurrency=1, requests=1)
        logs = await read_once(base)
    assert [log.has_pages for log in logs] == [True, True, False]
    assert server_load(logs).running == 4
    assert logs[2].failure


@pytest.mark.parametrize("host", ["localhost", "127.1"])
async def test_a_server_under_two_urls_is_read_and_counted_once(host: str) -> None:
    async with pages(metrics="vllm:num_requests_running 2\n") as url:
        port = url.rpartition(":")[2]
        base = config(f"http://{host}:{port}", concurrency=1, requests=1)
        logs = await read_once(with_telemetry(base, server_metrics=[url]))
    assert [log.url for log in logs] == [f"{url}/metrics"]
    assert server_load(logs).running == 2


async def test_an_address_of_the_targets_name_that_is_named_too_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = ("127.0.0.1", SECOND_HOST, "127.0.0.9")  # Nothing listens on the third.
    async with pages(metrics="vllm:num_requests_running 2\n") as url:
        port = int(url.rpartition(":")[2])

        def getaddrinfo(host: str, *_asked: Any, **_more: Any) -> list[Any]:
            found = hosts if host == "replicas" else (host,)
            return [(socket.AF_INET, 1, 6, "", (each, port)) for each in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        base = config(f"http://replicas:{port}", concurrency=1, requests=1)
        logs = await read_once(with_telemetry(base, server_metrics=[url]))
    assert [log.url for log in logs] == [f"http://{host}:{port}/metrics" for host in hosts]
    assert server_load(logs).running == 4
    # That one has no page says something, as the others have one.
    assert [log.has_pages for log in logs] == [True, True, False]


async def test_a_run_has_what_its_server_and_gpus_said_in_all_its_files(tmp_path: Path) -> None:
    def gpu_page(number: int) -> str:
        return DCGM.replace(f'{POWER}gpu="0"', f'{POWER}gpu="0",n="0"').replace(
            "} 512.345", f"}} {500 + number}"
        )

    def broken(number: int) -> str:
        return "up 1\n" if number < 3 else "<html>Bad gateway</html>"

    def restarting(number: int) -> str:
        odd = '# TYPE odd histogram\nodd_bucket 1\nodd_bucket{le="many"} 2\nodd_count 3\n'
        return f"vllm:generation_tokens_total {number % 6}\n{odd}"

    wrong = {"broken": broken, "restarting": restarting}
    async with pages(metrics=gpu_page, **wrong) as gpu_url:
        with server(ttft="120ms", itl="5ms", tokens=10, slots=3) as mock:
            settings = with_telemetry(
                config(mock.url, concurrency=4, duration="3s"),
                gpu_telemetry=[gpu_url],
                server_metrics=[f"{gpu_url}/{name}" for name in wrong],
                interval="200ms",
            )
            async with stack(settings, tmp_path) as run:
                summary = await run.results()
            truth = mock.truth()
    system = summary["aiperf_svc"]["system"]
    problems = {source["url"]: source["problem"] for source in system["sources"]}
    assert "reads failed: line 1 is no sample: <html>" in problems.pop(f"{gpu_url}/broken")
    assert "its counters restarted" in problems.pop(f"{gpu_url}/restarting")
    assert list(problems.values()) == ["", ""]
    assert all(0.1 < source["update_interval_s"] < 0.4 for source in system["sources"][:1])
    # The server's own slots: three requests run, and the fourth of the users waits.
    assert system["metrics"]["server_running_requests"] == pytest.approx(3, abs=0.5)
    assert system["metrics"]["server_waiting_requests"] == pytest.approx(1, abs=0.5)
    client_ms = summary["time_to_first_token"]["avg"]
    assert 120 <= system["metrics"]["server_time_to_first_token"] <= client_ms
    folder = tmp_path / "artifacts"
    raw = (folder / "server_metrics_export.jsonl").read_text()
    lines = [json.loads(x) for x in raw.splitlines()]
    newest = [line for line in lines if line["endpoint_url"].startswith(mock.url)][-1]
    assert newest["metrics"]["vllm:request_success"][0]["value"] == truth["completed"]
    stats = json.loads((folder / "server_metrics_export.json").read_text())
    series = stats["metrics"]["vllm:generation_tokens"]["series"]
    (tokens,) = [each for each in series if each["endpoint_url"].startswith(mock.url)]
    assert tokens["stats"]["total"] == 10 * summary["request_count"]["avg"]
    blocks = (folder / "server_metrics_export.csv").read_text().split("\n\n")
    (counters,) = [block for block in blocks if ",total,rate," in block]
    rows = csv.DictReader(counters.splitlines())
    named = [row for row in rows if row["Metric"] == "vllm:generation_tokens"]
    (row,) = [row for row in named if row["Endpoint"] in mock.url]
    written = {name: float(row[name]) for name in tokens["stats"]}
    assert written == pytest.approx(tokens["stats"], rel=1e-10)
    wide = read_parquet(folder / "server_metrics_export.parquet").read_all()
    names = ("metric_name", "bucket_le", "timestamp_ns", "bucket_count", "count", "engine")
    columns = [[value.as_py() for value in wide.column(name)] for name in names]
    ttft = [row for row in zip(*columns, strict=True) if row[0] == f"vllm:{TTFT}"]
    whole = [row for row in ttft if row[1] == "+Inf"]
    assert len({row[2] for row in whole}) == len(whole) > 10
    assert [row[3] for row in whole] == [row[4] for row in whole]
    # The first page was read before the load, so no request is missing in the server's count.
    start_s = datetime.fromisoformat(summary["start_time"]).timestamp()
    assert lines[0]["timestamp_ns"] / 1e9 < start_s
    assert 0.8 * truth["completed"] < max(row[4] for row in whole) <= truth["completed"]
    assert {row[5] for row in ttft} == {"0"}
    gpus = [json.loads(x) for x in (folder / "gpu_telemetry_export.jsonl").read_text().splitlines()]
    assert {line["gpu_uuid"] for line in gpus} == {"GPU-6f1c0b40", "GPU-6f1c0b41"}
    assert len({line["telemetry_data"]["gpu_power_usage"] for line in gpus}) > 10
    table = read_parquet(folder / "telemetry.parquet").read_all()
    assert set(table.column_names) == {"source", "metric", "labels", "type", "wall_ns", "value"}
    sources = {str(source) for source in table.column("source").to_numpy()}
    assert {"aiperf-svc", f"{mock.url}/metrics", f"{gpu_url}/metrics"} <= sources
    report = (folder / "report.html").read_text()
    assert "Running on the server" in report
    assert "CPU of the busiest service" in report
    assert (folder / "metrics.om").read_text().endswith("# EOF\n")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert "metrics.om" in json.dumps(files)


async def test_pages_are_read_between_warmup_and_load_whatever_their_interval(
    tmp_path: Path,
) -> None:
    with server(tokens=3) as mock:
        base = config(mock.url, concurrency=2, requests=20, warmup={"requests": 10})
        async with stack(with_telemetry(base, interval="30s"), tmp_path) as run:
            summary = await run.results()
    (source,) = summary["aiperf_svc"]["system"]["sources"]
    assert source["reads"] == 3, "before the warmup, before the load, after it"


async def test_the_last_samples_of_a_run_are_the_totals_of_its_results(tmp_path: Path) -> None:
    # A worker takes a response whose events are no JSON for a whole one.
    with server(tokens=3, malformed_rate=0.3) as mock:
        dataset = talks(tmp_path, *[{"text": "Go on."}] * 3, count=50)
        base = config(mock.url, dataset=dataset, concurrency=4, requests=50)
        async with stack(with_telemetry(base), tmp_path) as run:
            summary = await run.results()
    last = {}
    for line in (tmp_path / "artifacts" / "metrics.om").read_text().splitlines():
        if line.startswith("aiperf_requests_"):
            last[line.partition("{")[0]] = float(line.rpartition("} ")[2].split()[0])
    errors = sum(entry["count"] for entry in summary["error_summary"])
    assert errors
    assert last == {
        "aiperf_requests_completed_total": summary["request_count"]["avg"],
        "aiperf_requests_errored_total": errors,
        "aiperf_requests_in_flight": 0,
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_makes_blocks_of_a_runs_metrics(tmp_path: Path) -> None:
    with server(ttft="10ms", tokens=3) as mock:
        settings = with_telemetry(config(mock.url, concurrency=2, duration="2s"), interval="200ms")
        async with stack(settings, tmp_path) as run:
            await run.results()
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
    files = [str(tmp_path / "artifacts" / "metrics.om"), str(tmp_path / "blocks")]
    process = await asyncio.create_subprocess_exec(*command, *files, stderr=subprocess.PIPE)
    _, complaints = await process.communicate()
    assert process.returncode == 0, complaints
    assert list((tmp_path / "blocks").glob("*/meta.json"))


async def test_without_a_source_a_run_has_no_files_of_telemetry(tmp_path: Path) -> None:
    with server(tokens=3) as mock:
        settings = with_telemetry(config(mock.url, concurrency=2, requests=20), target=False)
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
    assert "system" not in summary["aiperf_svc"]
    names = {path.name for path in (tmp_path / "artifacts").iterdir()}
    assert not names & {"metrics.om", "telemetry.parquet", "server_metrics_export.jsonl"}
