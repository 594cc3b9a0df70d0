"""Measures each API of llama.cpp's server and compares it with the server's own counters.

Invariants: no request fails; the sum of the tokens in responses equals the increase of the server's
counters; locally counted prompts have as many tokens as on the server; and no average time to first
token is below the server's own prompt time.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from aiperf_svc.domain.process_environment import OWN_PROGRAM
from benchmarks.real_server.server import made, serving

REQUESTS = 40
TIMEOUT_S = 300.0
_LOAD = (
    *("--model", "tiny", "--ui", "none", "--concurrency", "2", "--isl", "40", "--osl", "16"),
    *("--request-count", str(REQUESTS), "--num-prompts", str(REQUESTS)),
    # A readiness probe would count on the server.
    *("--no-force-output-length", "--connections", "per-request"),
)
_PASSAGES = ("--rankings-passages-mean", "3", "--rankings-passages-prompt-token-mean", "20")
_NATIVE = '{"prompt": {{ text|tojson }}, "n_predict": {{ max_tokens }}, "stream": true}'
_WITH_TEMPLATE = ("--apply-chat-template",)
_COUNTER = re.compile(r"^llamacpp:(\w+) (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Api:
    """One API, streamed or not."""

    name: str
    flags: tuple[str, ...]
    server_flags: tuple[str, ...] = ()
    is_counted: bool = True
    """Whether local prompt counts equal the server's, because it applies no template."""


@dataclass(frozen=True)
class Result:
    """Results of one API. Tokens are the sums over all requests, or None if nothing states them."""

    api: str
    completed: int
    input_counted: int
    input_stated: int | None
    input_server: int
    output_stated: int | None
    output_server: int
    ttft_ms: float | None
    prompt_ms: float
    """Time for a prompt according to the server's counters."""
    verdict: str
    problems: tuple[str, ...]


def _both(name: str, *flags: str) -> tuple[Api, Api]:
    own = ("--endpoint-type", name, *flags)
    return Api(f"{name}-stream", (*own, "--streaming")), Api(name, own)


APIS = (
    *_both("chat", *_WITH_TEMPLATE),
    *_both("completions"),
    *_both("responses", *_WITH_TEMPLATE),
    *_both("messages", *_WITH_TEMPLATE),
    Api(
        "template-stream",
        (
            *("--endpoint-type", "template", "--endpoint", "/completion", "--streaming"),
            *("--endpoint-template", _NATIVE, "--response-field", "content"),
            *("--output-tokens-field", "tokens_predicted"),
        ),
    ),
    Api("embeddings", ("--endpoint-type", "embeddings"), ("--embedding", "--pooling", "mean")),
    Api(
        "cohere_rankings",
        ("--endpoint-type", "cohere_rankings", "--endpoint", "/v1/rerank", *_PASSAGES),
        ("--reranking",),
        is_counted=False,
    ),
    Api(
        "hf_tei_rankings",
        ("--endpoint-type", "hf_tei_rankings", *_PASSAGES),
        ("--reranking",),
        is_counted=False,
    ),
)


def compare(apis: Sequence[Api], *, as_json: bool) -> int:
    """Measure these APIs and print the results. Return 0 if all invariants hold."""
    _, model = made()
    results = []
    for flags, group in groupby(apis, lambda api: api.server_flags):
        with serving(*flags) as url:
            for api in group:
                results.append(_measured(api, url, model))
                found = "; ".join(results[-1].problems) or "as the server says"
                print(f"{api.name}: {found}", file=sys.stderr)
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        _show(results)
    return int(any(result.problems for result in results))


def _measured(api: Api, url: str, model: Path) -> Result:
    before = counters(url)
    with tempfile.TemporaryDirectory() as folder:
        where = ("--url", url, "--tokenizer", str(model), "--artifact-dir", folder)
        command = [*OWN_PROGRAM, "profile", *_LOAD, *where, *api.flags]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        path = next(Path(folder).glob("*/profile_export_aiperf.json"), None)
        if path is None:
            raise SystemExit(f"{api.name}: exit code {run.returncode}: {run.stderr[-2_000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
    rose = {name: value - before[name] for name, value in counters(url).items()}
    server_input = rose["prompt_tokens_total"] + rose["prompt_tokens_cached_total"]
    result = Result(
        api=api.name,
        completed=round(found["request_count"]["avg"]),
        input_counted=round(found["input_sequence_length"]["sum"]),
        input_stated=_sum(found, "usage_prompt_tokens"),
        input_server=round(server_input),
        output_stated=_sum(found, "usage_completion_tokens"),
        output_server=round(rose["tokens_predicted_total"]),
        ttft_ms=found.get("time_to_first_token", {}).get("avg"),
        prompt_ms=rose["prompt_seconds_total"] * 1e3 / REQUESTS,
        verdict=found["aiperf_svc"]["verdict"],
        problems=(),
    )
    return Result(**(asdict(result) | {"problems": tuple(_problems(api, result))}))


def _problems(api: Api, found: Result) -> list[str]:
    problems = []
    if found.completed != REQUESTS:
        problems.append(f"{found.completed} of {REQUESTS} requests completed")
    if found.input_stated not in (None, found.input_server):
        problems.append("stated input tokens differ from the server's counters")
    if api.is_counted and found.input_counted != found.input_server:
        problems.append("counted input tokens differ from the server's counters")
    if found.output_stated not in (None, found.output_server):
        problems.append("stated output tokens differ from the server's counters")
    if found.ttft_ms is not None and found.ttft_ms < found.prompt_ms:
        problems.append("the time to first token is shorter than the server's for the prompt")
    return problems


def _sum(found: dict[str, Any], tag: str) -> int | None:
    return round(found[tag]["sum"]) if tag in found else None


def counters(url: str) -> dict[str, float]:
    """Wait until the server processes no request and return its counters."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
            found = {name: float(value) for name, value in _COUNTER.findall(page.read().decode())}
        if not found["requests_processing"] and not found["requests_deferred"]:
            return found
        time.sleep(0.1)
    raise SystemExit(f"{url}: requests are processed for over {TIMEOUT_S:g} s")


def _show(results: Sequence[Result]) -> None:
    print(f"{'':18}{'input tokens':>27}{'output tokens':>18}{'average, ms':>18}")
    titles = ("counted", "stated", "server", "stated", "server", "TTFT", "prompt")
    print(f"{'API':18}" + "".join(f"{title:>9}" for title in titles))
    for found in results:
        counts = (
            *(found.input_counted, found.input_stated, found.input_server),
            *(found.output_stated, found.output_server),
        )
        times = (found.ttft_ms, found.prompt_ms)
        print(
            f"{found.api:18}"
            + "".join(f"{'-' if each is None else format(each, ','):>9}" for each in counts)
            + "".join(f"{'-' if each is None else format(each, '.2f'):>9}" for each in times)
            + f"   {'; '.join(found.problems) or 'as the server says'}"
        )
    print(f"\n{REQUESTS} requests of two users each; 'server' is what its counters rose by")
