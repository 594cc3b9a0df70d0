"""One run of the whole product against the fuzz server, and its invariants.

- The command ends in time with a documented exit code, and neither it nor a service prints a
  traceback.
- Every request is accounted for: no violation, and one record for each credit.
- A good response is a completed record with its chunks and tokens. A bad one is an error.
- The verdict is not `valid` if over 1% of the responses were bad, and never if the counts of
  client and server differ.
- No service's memory grows with the number of responses.
"""

import itertools
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from aiperf_svc.adapters.exports.parquet_export import read_records
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from benchmarks import machine_use
from benchmarks.fuzz.legal import MODEL
from benchmarks.fuzz.reply import Reply, Truth
from benchmarks.fuzz.responses import reply
from benchmarks.fuzz.server import FuzzServer, serving

ROOT = Path(__file__).parents[2]
REQUEST_TIMEOUT_S = 1.0
TIMEOUT_S = 120.0
"""Time limit of one run. It is far above the time of its responses and detects hangs."""
GROWTH_BYTES = 24 * 2**20
"""Allowed growth of one service after a third of a run. Caches of responses fill until then."""
JUDGED_GROWTH = 2_000
"""With fewer responses, the memory is dominated by process start."""
BAD_SHARE = 0.01
"""The verdict's limit for errors."""
SAMPLE_S = 0.2
_COMPARED = (
    "index", "outcome", "error", "chunks", "usage_completion_tokens", "status", "start_wall_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One run."""

    number: int
    seed: int
    responses: int
    is_streaming: bool
    bad_share: float
    users: int = 24
    keeps_connections: bool = True
    request_timeout_s: float = REQUEST_TIMEOUT_S

    def reply(self, index: int) -> Reply:
        """Return the response to request `index`."""
        return reply(
            index,
            seed=self.seed * 1_000 + self.number,
            is_streaming=self.is_streaming,
            bad_share=self.bad_share,
        )

    def config(self, url: str, folder: str) -> dict[str, Any]:
        """Return the benchmark config."""
        return {
            "name": "fuzz",
            "endpoint": {
                "url": url,
                "model": MODEL,
                "streaming": self.is_streaming,
                "request_timeout": f"{self.request_timeout_s:g}s",
                "connections": "keep-alive" if self.keeps_connections else "per-request",
            },
            "load": {"concurrency": self.users, "requests": self.responses},
            "dataset": {"entries": 50, "input_tokens": {"mean": 20}},
            "artifacts": {"dir": folder},
        }


@dataclass
class Finding:
    """Result of a trial. It passed if `problems` is empty."""

    trial: Trial
    problems: list[str] = field(default_factory=list)
    verdict: str = ""
    exit_code: int = -1
    good: int = 0
    bad: int = 0
    seconds: float = 0.0
    growth: dict[str, int] = field(default_factory=dict)
    """Growth in bytes by service, from a third of the run to its end."""


def trials(responses: int, *, seed: int, size: int = 500) -> Iterator[Trial]:
    """Yield runs with this total of responses: mostly bad, with a few bad, and only good ones, as
    streams and whole bodies. The first run is four times as long to measure its memory."""
    shares = itertools.cycle((0.5, 0.02, 0.0, 0.5, 0.004))
    number = 0
    while responses > 0:
        count = min(responses, size * 5 if number == 0 and responses > size * 5 else size)
        yield Trial(
            number,
            seed,
            count,
            is_streaming=number % 3 != 2,
            bad_share=next(shares),
            keeps_connections=number % 4 != 3,
        )
        responses -= count
        number += 1


def run_trial(trial: Trial) -> Finding:
    """Run a trial and check all of its output."""
    finding = Finding(trial)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, serving(trial.reply) as server:
        folder = Path(name)
        config = folder / "fuzz.yaml"
        url = f"http://127.0.0.1:{server.port}"
        config.write_text(yaml.safe_dump(trial.config(url, str(folder / "artifacts"))))
        errors = _run(config, folder, server, finding)
        if errors is not None:
            _judge(finding, server, folder / "artifacts", errors)
    finding.seconds = time.monotonic() - began
    return finding


def _run(config: Path, folder: Path, server: FuzzServer, finding: Finding) -> str | None:
    """Run the command and return its stderr. None if it did not end."""
    command = [*OWN_PROGRAM, "run", str(config), "--local", "--ui", "none"]
    log = folder / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        )
        try:
            samples = _watch(process, server)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if samples is None:
        finding.problems.append(f"the run did not end within {TIMEOUT_S:g} s")
        return None
    finding.exit_code = process.returncode
    if finding.trial.responses >= JUDGED_GROWTH:
        finding.growth = _growth(samples, finding.trial.responses)
    return log.read_text(errors="replace")


def _watch(
    process: "subprocess.Popen[bytes]", server: FuzzServer
) -> list[tuple[int, dict[str, int]]] | None:
    """Sample the number of responses and the memory by service until the process ends."""
    samples = []
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            return None
        sizes = {}
        for pid in machine_use.family(process.pid):
            _, is_service, names = machine_use.command_line(pid).partition(
                "/aiperf_svc/__main__.py service "
            )
            if is_service:
                sizes[f"{names} ({pid})"] = machine_use.pss_bytes([pid])
        samples.append((len(server.arrivals), sizes))
        try:
            process.wait(SAMPLE_S)
        except subprocess.TimeoutExpired:
            continue
    return samples


def _growth(samples: list[tuple[int, dict[str, int]]], responses: int) -> dict[str, int]:
    """Return the growth of each service after a third of the responses of the load."""
    load = [sizes for count, sizes in samples if responses / 3 <= count < responses]
    if not load:
        return {}
    return {name: load[-1].get(name, 0) - size for name, size in load[0].items()}


def _judge(finding: Finding, server: FuzzServer, artifacts: Path, errors: str) -> None:
    problems = finding.problems
    if "Traceback" in errors or "unexpected" in errors:
        problems.append(f"stderr: {errors[-500:]}")
    codes = (ExitCode.OK, ExitCode.VERDICT_INVALID, ExitCode.BENCHMARK_FAILED)
    if finding.exit_code not in codes:
        problems.append(f"exit code {finding.exit_code}: {errors[-500:]}")
    folder = next(artifacts.glob("*/"), None) if artifacts.is_dir() else None
    if folder is None or not (folder / "records.parquet").is_file():
        problems.append(f"no results: {errors[-500:]}")
        return
    for log in folder.glob("logs/*"):
        if "Traceback" in (text := log.read_text(errors="replace")):
            problems.append(f"{log.name}: {text[text.index('Traceback') :][:800]}")
    results = json.loads((folder / "profile_export_aiperf.json").read_text())["aiperf_svc"]
    finding.verdict = results["verdict"]
    problems += results["accounts"]["violations"]
    is_same = compare(finding, server, read_records(folder / "records.parquet"))
    _judge_verdict(finding, server, is_same)
    for name, growth in finding.growth.items():
        if growth > GROWTH_BYTES:
            problems.append(f"{name} grew by {growth / 2**20:.0f} MiB")


def compare(finding: Finding, server: FuzzServer, records: dict[str, Any]) -> bool:
    """Compare each record with the response to its request. Return whether all of them agree.

    A server may close a connection that looks reusable. A request that crosses the close never
    arrives, and is an error unless it is sent again. A server on a busy machine may also respond
    too late: then a timeout is right, and so is a complete response that arrived before the client
    checked for timeouts.
    """
    trial, problems = finding.trial, finding.problems
    before = len(problems)
    is_profiling = records["phase"] == Phase.PROFILING
    rows = {name: records[name][is_profiling].tolist() for name in _COMPARED}
    seen = rows["index"]
    if sorted(seen) != list(range(trial.responses)):
        missing = set(range(trial.responses)) - set(seen)
        problems.append(f"{len(seen)} records, {len(set(seen))} requests, missing {missing or '-'}")
    for index, outcome, error, chunks, tokens, status, start in zip(*rows.values(), strict=True):
        sent = trial.reply(index)
        too_late = start + trial.request_timeout_s * 1e9
        is_in_time = server.ended_wall_ns.get(index, math.inf) < too_late
        truth = sent.truth if server.arrivals[index] else Truth.BAD
        if truth is Truth.GOOD and not is_in_time:
            may_be_whole = index in server.in_last_part and outcome == Outcome.COMPLETED
            truth = Truth.GOOD if may_be_whole else Truth.BAD
        text = f"request {index}, {sent.kind}: {Outcome(outcome).name} {ErrorKind(error).name}"
        text += f", status {status}"
        finding.good += truth is Truth.GOOD
        finding.bad += truth is Truth.BAD
        if truth is Truth.BAD and outcome != Outcome.ERRORED:
            problems.append(f"{text}, though it is broken: {sent.data[:400]!r}")
        if truth is not Truth.GOOD:
            continue
        if outcome != Outcome.COMPLETED:
            problems.append(f"{text}, though it is whole: {sent.data[:800]!r}")
        elif sent.chunks >= 0 and chunks != sent.chunks:
            problems.append(f"{text}: {chunks} chunks of {sent.chunks}: {sent.data[:800]!r}")
        elif tokens != sent.tokens:
            problems.append(f"{text}: {tokens} tokens of {sent.tokens}: {sent.data[-400:]!r}")
    return len(problems) == before


def _judge_verdict(finding: Finding, server: FuzzServer, is_same: bool) -> None:
    """Check that a run is not called valid if it differs from the server's record."""
    if finding.verdict != "valid":
        return
    trial = finding.trial
    if finding.bad > BAD_SHARE * trial.responses:
        finding.problems.append(f"called valid with {finding.bad} bad of {trial.responses}")
    if not is_same:
        finding.problems.append("called valid though the accounts of client and server differ")
    missing = set(range(trial.responses)) - set(server.arrivals)
    if missing:
        finding.problems.append(f"called valid though {len(missing)} requests never arrived")
