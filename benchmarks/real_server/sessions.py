"""Conversations through SGLang's router in front of two llama.cpp servers.

Invariants: with the policy that follows the session id (`manual`), each turn after the first finds
the previous turn's whole prompt in its server's cache, so all turns of a session reached one
server. With `round_robin`, some turns do not. The counters of both servers together increase by
exactly the tokens that the responses state.
"""

import json
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from aiperf_svc.domain.process_environment import OWN_PROGRAM
from benchmarks.real_server.apis import TIMEOUT_S, counters
from benchmarks.real_server.server import CACHE, STOP_S, free_port, made, serving, wait_until_ready

ROUTER = "sglang-router==0.3.2"
ROUTER_FOLDER = CACHE.parent / "sglang-router"
SESSIONS, TURNS = 12, 4
POLICIES = {"manual": ("--assignment-mode", "min_group"), "round_robin": ()}
"""`manual` routes all requests with one `X-SMG-Routing-Key` to one server. With `min_group`, a new
key goes to the server with the fewest keys."""
LOAD = (
    *("--model", "tiny", "--ui", "none", "--streaming", "--concurrency", "4", "--isl", "60"),
    *("--osl", "16", "--conversation-turn-mean", str(TURNS), "--num-conversations", str(SESSIONS)),
    *("--request-count", str(SESSIONS * TURNS), "--session-header", "X-SMG-Routing-Key"),
    # Token sums are compared with the servers' counters, where a readiness probe would count too.
    *("--apply-chat-template", "--use-server-token-count", "--no-force-output-length"),
)
SLOTS = ("--parallel", "8")
"""More than the concurrent sessions, so that none evicts another's cache."""


@dataclass(frozen=True)
class Result:
    """Results of the conversations under one policy. Tokens are the sums over all prompts."""

    policy: str
    sessions: int
    completed: int
    later: int
    """Turns after the first."""
    found: int
    """Later turns whose server had the whole previous prompt in its cache."""
    prompt_stated: int
    cached_stated: int
    prompt_servers: tuple[int, ...]
    """According to the counters of each server."""
    cached_servers: tuple[int, ...]
    router_samples: int
    """Lines of the run's server metrics with the router's request counts."""
    problems: tuple[str, ...] = ()


def compare_policies(*, as_json: bool) -> int:
    """Measure each policy and print the results. Return 0 if all invariants hold."""
    with serving(*SLOTS, name="server") as one, serving(*SLOTS, name="server-2") as two:
        results = [_measured(policy, (one, two)) for policy in POLICIES]
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        _show(results)
    return int(any(result.problems for result in results))


def _measured(policy: str, servers: tuple[str, ...]) -> Result:
    before = [counters(url) for url in servers]
    with tempfile.TemporaryDirectory() as folder, routing(policy, servers) as (url, page):
        pages = ("--server-metrics", *(f"{each}/metrics" for each in servers), page)
        where = ("--url", url, "--tokenizer", str(made()[1]), "--artifact-dir", folder)
        command = [*OWN_PROGRAM, "profile", *LOAD, *where, *pages]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        path = next(Path(folder).glob("*/profile_export.jsonl"), None)
        if path is None:
            raise SystemExit(f"{policy}: exit code {run.returncode}: {run.stderr[-2_000:]}")
        turns, completed = _turns(path), len(path.read_text().splitlines())
        samples = (path.parent / "server_metrics_export.jsonl").read_text()
    rose = [
        {name: round(value - old[name]) for name, value in counters(url).items()}
        for url, old in zip(servers, before, strict=True)
    ]
    pairs = [pair for each in turns for pair in pairwise(each)]
    result = Result(
        policy=policy,
        sessions=len(turns),
        completed=completed,
        later=len(pairs),
        found=sum(cached >= prompt for (prompt, _), (_, cached) in pairs),
        prompt_stated=sum(prompt for each in turns for prompt, _ in each),
        cached_stated=sum(cached for each in turns for _, cached in each),
        prompt_servers=tuple(
            each["prompt_tokens_total"] + each["prompt_tokens_cached_total"] for each in rose
        ),
        cached_servers=tuple(each["prompt_tokens_cached_total"] for each in rose),
        router_samples=samples.count('"smg_router_requests"'),
    )
    return Result(**(asdict(result) | {"problems": tuple(_problems(result))}))


def _turns(path: Path) -> list[list[tuple[int, int]]]:
    """Return the prompt tokens, and the cached ones among them, of each turn of each session."""
    found: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        about, metrics = record["metadata"], record["metrics"]
        names = ("usage_prompt_tokens", "usage_prompt_cache_read_tokens")
        prompt, cached = (round(metrics[name]["value"]) for name in names)
        found[about["x_correlation_id"]][about["turn_index"]] = prompt, cached
    return [[turns[number] for number in sorted(turns)] for turns in found.values()]


def _problems(found: Result) -> list[str]:
    problems = []
    if (found.sessions, found.completed) != (SESSIONS, SESSIONS * TURNS):
        problems.append(
            f"{found.sessions} sessions with {found.completed} requests, "
            f"expected {SESSIONS} with {SESSIONS * TURNS}"
        )
    if found.policy == "manual" and found.found != found.later:
        problems.append("turns of a session reached different servers")
    if found.policy != "manual" and found.found == found.later:
        problems.append("all turns found their history, without a policy that keeps them together")
    if min(found.prompt_servers) == 0:
        problems.append("one server got no request")
    if sum(found.prompt_servers) != found.prompt_stated:
        problems.append("stated prompt tokens differ from the servers' counters")
    if sum(found.cached_servers) != found.cached_stated:
        problems.append("stated cached tokens differ from the servers' counters")
    if not found.router_samples:
        problems.append("the run has nothing of the router's page")
    return problems


@contextmanager
def routing(policy: str, servers: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Run the router in front of the servers. Yield its URL and that of its metrics page."""
    if not (ROUTER_FOLDER / "complete").exists():
        print(f"installing {ROUTER} in {ROUTER_FOLDER}", file=sys.stderr)
        venv.create(ROUTER_FOLDER, with_pip=True, clear=True)
        install = (ROUTER_FOLDER / "bin/python", "-m", "pip", "install", "--quiet", ROUTER)
        subprocess.run(install, check=True)
        (ROUTER_FOLDER / "complete").touch()
    port, metrics_port = free_port(), free_port()
    command: list[str | Path] = [
        *(ROUTER_FOLDER / "bin/python", "-m", "sglang_router.launch_router", "--policy", policy),
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", *servers),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *("--log-level", "warn", *POLICIES[policy]),
    ]
    log = CACHE / "router.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as router,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(router, f"{url}/readiness", log, what="router")
            yield url, f"http://127.0.0.1:{metrics_port}/metrics"
        finally:
            router.terminate()
            router.wait(STOP_S)


def _show(results: list[Result]) -> None:
    print(f"{'':12}{'later turns':>24}{'prompt tokens':>26}{'cached tokens':>26}")
    titles = (
        "sessions",
        "",
        "with history",
        "stated",
        "by the servers",
        "stated",
        "by the servers",
    )
    widths = (8, 4, 12, 8, 18, 8, 18)
    cells = (f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    print(f"{'policy':12}{''.join(cells)}")
    for found in results:
        values = (
            *(found.sessions, "", f"{found.found} of {found.later}"),
            *(found.prompt_stated, " + ".join(map(str, found.prompt_servers))),
            *(found.cached_stated, " + ".join(map(str, found.cached_servers))),
        )
        cells = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
        print(f"{found.policy:12}{''.join(cells)}   {'; '.join(found.problems) or 'as expected'}")
