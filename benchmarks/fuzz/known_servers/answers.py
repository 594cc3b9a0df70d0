"""Healthy servers that were wrongly called slow, client-bound or degraded."""

import json

from aiperf_svc.domain.exit_codes import ExitCode
from benchmarks.fuzz.known_servers.known_server import KnownServer, stream
from benchmarks.fuzz.reply import Reply
from benchmarks.truth.client_runs import ClientRun

SHORT = ("--streaming", "--concurrency", "2", "--request-count", "12")


def _reply(*, first_s: float, gap_s: float) -> Reply:
    events = [
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()
        for text in (" one", " two", " three")
    ]
    events[-1] += b"\n\ndata: [DONE]"
    return stream([event + b"\n\n" for event in events], first_s=first_s, gap_s=gap_s)


def _not_judged(run: ClientRun) -> list[str]:
    (objective,) = run.results["aiperf_svc"]["slo"]
    problems = [] if objective["judged"] is False else ["the objective was judged"]
    if run.exit_code != ExitCode.SLO_NOT_JUDGED:
        problems.append(f"exit code {run.exit_code}, expected {ExitCode.SLO_NOT_JUDGED}")
    return problems


def _objective_held(run: ClientRun) -> list[str]:
    (check,) = [each for each in run.verdict["checks"] if each["check"] == "concurrency"]
    return [] if check["severity"] == "valid" else [check["text"]]


def _too_fast(run: ClientRun) -> list[str]:
    remedies = [each["remedy"] for each in run.verdict["reasons"] if "too fast" in each["remedy"]]
    wrong = [each["remedy"] for each in run.verdict["reasons"] if "more CPU" in each["remedy"]]
    return wrong or ([] if remedies else ["no reason says that the server is too fast"])


SERVERS: tuple[KnownServer, ...] = (
    KnownServer(
        "few-requests-for-a-p99",
        _not_judged,
        lambda _: _reply(first_s=0.1, gap_s=0.05),
        flags=(*SHORT, "--slo", "time_to_first_token:p99<10s"),
    ),
    KnownServer(
        "two-users-of-a-short-run",
        _objective_held,
        lambda _: _reply(first_s=0.1, gap_s=0.05),
        flags=SHORT,
    ),
    KnownServer(
        "no-latency",
        _too_fast,
        lambda _: _reply(first_s=0.0, gap_s=0.0),
        flags=("--streaming", "--concurrency", "1", "--request-count", "500"),
    ),
)
