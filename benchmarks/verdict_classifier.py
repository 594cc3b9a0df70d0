"""Tests the verdict as a classifier with hundreds of short runs: honest ones, starved ones, and
ones on a failing server.

    python -m benchmarks.verdict_classifier --runs 300
    python -m benchmarks.verdict_classifier --runs 300 --results runs.jsonl --seconds 200

The server's record decides whether a run was true. A run is spoiled if the p99 of TTFT is off by
more than 5%, the load fell short by more than 1%, or over 1% of the requests got no good response.
The rule: no spoiled run is called `valid`, no run on a failing server passes its objective, and at
most one of 50 honest unspoiled runs is called anything else. If the cores themselves stalled during
an honest run, the virtual machine's host starved it: it counts as disturbed, neither for nor
against the rule, unless it is spoiled and called `valid`. With `--results`, finished runs are
stored in a file, and the same command continues after them. Without `--kinds`, the servers of
`benchmarks.fuzz.known_servers` are measured too, and their results must match the known truth.
Stall witnesses need the permission for real-time priorities, which root has.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from benchmarks.fuzz.known_servers.registry import SERVERS, measure_all
from benchmarks.truth import fault_injection
from benchmarks.truth.client_runs import ClientRun, RunFailedError, run_client
from benchmarks.truth.comparison import closed_loop_load, compare, open_loop_load
from benchmarks.truth.nasty_servers import run_nasty
from benchmarks.truth.stall_witness import witness_stalls
from benchmarks.truth.trials import HONEST, NASTY, STARVED, Trial, trial

TTFT_LIMIT, LOAD_LIMIT, FAILED_LIMIT = 0.05, 0.01, 0.01
FALSE_ALARMS = 1 / 50
ENOUGH = 50
"""Minimum number of honest runs to judge the share of false alarms."""
STALLED_LIMIT_S = 0.03
"""Total over all cores. A hundredth of the run decides a p99: 25 ms of the load."""
THIN = 100
"""With fewer requests p90 replaces p99, as in the verdict."""


@dataclass(frozen=True)
class Finding:
    """Result of a trial."""

    trial: dict[str, Any]
    verdict: str
    """Empty without results."""
    fired: list[str]
    ttft_shift: float = 0.0
    load_short: float = 0.0
    requests: int = 0
    failed_share: float = 0.0
    """Share of requests without a good response according to a failing server."""
    passes_slo: bool = False
    """Whether the run exited with 0 although it had an objective."""
    stalled_s: float = 0.0
    """Total time for which cores stalled during the trial."""

    @property
    def is_spoiled(self) -> bool:
        """Return whether the run was spoiled according to the server's record."""
        return (
            abs(self.ttft_shift) > TTFT_LIMIT
            or self.load_short > LOAD_LIMIT
            or self.failed_share > FAILED_LIMIT
        )

    @property
    def is_missed(self) -> bool:
        """Return whether a spoiled run passed, by its verdict or by its exit code."""
        return self.is_spoiled and (self.verdict == "valid" or self.passes_slo)

    @property
    def is_honest(self) -> bool:
        return self.trial["kind"] in HONEST

    @property
    def is_disturbed(self) -> bool:
        """Return whether a run that should be honest was starved by the host."""
        return self.is_honest and self.stalled_s > STALLED_LIMIT_S


def run_trial(trial: Trial) -> Finding:
    """Run the trial and compare it."""
    return _run_nasty(trial) if trial.kind in NASTY else _run_starved(trial)


def _run_nasty(trial: Trial) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        try:
            run, failed_share = run_nasty(trial, Path(folder))
        except RunFailedError as error:
            return Finding(vars(trial), "", [str(error)[-200:]])
    return Finding(
        trial=vars(trial),
        verdict=run.verdict["verdict"],
        fired=[reason["check"] for reason in run.verdict["reasons"]],
        requests=len(run.request_ids),
        failed_share=round(failed_share, 4),
        passes_slo=run.exit_code == ExitCode.OK,
    )


def _run_starved(trial: Trial) -> Finding:
    with contextlib.ExitStack() as stack:
        if trial.kind == "ports":
            stack.enter_context(fault_injection.few_ports(int(trial.severity)))
        server = stack.enter_context(
            running(
                MockServerConfig(
                    ttft=f"{trial.ttft_ms}ms",
                    itl=f"{trial.itl_ms}ms",
                    tokens=trial.tokens,
                    truth=True,
                )
            )
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            run = _run_client(trial, server, folder)
        except RunFailedError as error:
            return Finding(vars(trial), "", [str(error)[-200:]])
        if trial.kind == "ports":
            fault_injection.many_ports()
        rows = server.truth(rows=True)["rows"]
    return _finding(trial, run, rows)


def _run_client(trial: Trial, server: RunningMockServer, folder: Path) -> ClientRun:
    environ: dict[str, str] = {}
    if trial.kind == "clock":
        environ = fault_injection.clock_step(folder, step_ms=trial.severity)
    results = folder / "results"
    results.mkdir()
    return run_client(
        server.url,
        trial.flags,
        folder=results,
        longest_s=trial.duration_s + 10,
        prepare=fault_injection.file_limit(int(trial.severity)) if trial.kind == "fds" else None,
        during=_starvation(trial, server, folder),
        environ=environ,
    )


def _starvation(
    trial: Trial, server: RunningMockServer, folder: Path
) -> Callable[[fault_injection.Client], None] | None:
    """Starve the client from its first request to the end of the load."""
    pulses = {
        "paused": ("worker", trial.severity, max(0.4, 2 * trial.severity)),
        "processor": ("record-processor", trial.severity, trial.severity + 0.1),
        "control": ("control", trial.severity, trial.severity + 0.5),
    }
    if trial.kind not in ("quota", "neighbour", "clock", *pulses):
        return None

    def starve(client: fault_injection.Client) -> None:
        fault_injection.wait_for_load(client, lambda: int(server.truth()["requests"]))
        if trial.kind in pulses:
            name, for_s, every_s = pulses[trial.kind]
            pids = fault_injection.services(client, name)
            fault_injection.pause(
                client, pids, for_s=for_s, every_s=every_s, until_s=trial.duration_s
            )
            return
        if trial.kind == "clock":
            fault_injection.rest(client, trial.duration_s / 2)
            fault_injection.step_clocks(folder)
            return
        workers = fault_injection.services(client, "worker")
        with _limited_cpu(trial, workers):
            fault_injection.rest(client, trial.duration_s + 0.5)

    return starve


@contextlib.contextmanager
def _limited_cpu(trial: Trial, workers: list[int]) -> Iterator[None]:
    if trial.kind == "quota":
        with fault_injection.cpu_quota(workers, trial.severity):
            yield
    else:
        with fault_injection.busy_neighbours(workers, int(trial.severity)):
            yield


def _finding(trial: Trial, run: ClientRun, rows: list[dict[str, Any]]) -> Finding:
    found = compare(run, rows, tokens=trial.tokens, ttft_ms=trial.ttft_ms)
    if trial.rate:
        issued = float(run.results["aiperf_svc"]["accounts"]["issued"])
        due = trial.rate * trial.duration_s if trial.pattern == "constant" else issued
        load = open_loop_load(run, rows, due=due, duration_s=trial.duration_s)
    else:
        load = closed_loop_load(run, rows, users=trial.users, duration_s=trial.duration_s)
    return Finding(
        trial=vars(trial),
        verdict=run.verdict["verdict"],
        fired=[reason["check"] for reason in run.verdict["reasons"]],
        ttft_shift=round(found.ttft.shift(0.99 if found.joined >= THIN else 0.90), 4),
        load_short=round(load.shortfall, 4),
        requests=found.requests,
    )


VERDICTS = ("valid", "degraded", "invalid", "no results")


@dataclass
class Tally:
    """The runs of one kind."""

    verdicts: Counter[str] = field(default_factory=Counter)
    spoiled: int = 0
    spoiled_valid: int = 0
    disturbed: int = 0
    alarms: int = 0
    """Runs that were neither spoiled nor disturbed and were not called valid."""
    checks: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        is_valid = finding.verdict == "valid"
        self.verdicts[finding.verdict or "no results"] += 1
        self.spoiled += finding.is_spoiled
        self.spoiled_valid += finding.is_missed
        self.disturbed += finding.is_disturbed
        self.alarms += not (finding.is_spoiled or finding.is_disturbed or is_valid)
        self.checks.update(finding.fired if finding.verdict else ["no results"])


def judge(findings: list[Finding]) -> dict[str, Any]:
    """Apply the rule to all findings."""
    disturbed = [f for f in findings if f.is_disturbed and not f.is_spoiled]
    honest = [f for f in findings if f.is_honest and not (f.is_spoiled or f.is_disturbed)]
    alarms = sum(finding.verdict != "valid" for finding in honest)
    missed = [finding for finding in findings if finding.is_missed]
    return {
        "runs": len(findings),
        "spoiled": sum(finding.is_spoiled for finding in findings),
        "spoiled_called_valid": [vars(finding) for finding in missed],
        "honest": len(honest),
        "honest_not_called_valid": alarms,
        "disturbed": len(disturbed),
        "disturbed_not_called_valid": sum(finding.verdict != "valid" for finding in disturbed),
        "passed": not missed and alarms <= FALSE_ALARMS * max(len(honest), ENOUGH),
        "is_proof": len(honest) >= ENOUGH,
    }


def main() -> int:
    """Run the trials and print the table. Return 0 if the rule holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after this time")
    parser.add_argument("--results", type=Path, default=Path(os.devnull), help="file of findings")
    parser.add_argument(
        "--kinds", nargs="+", choices=(*HONEST, *STARVED, *NASTY), help="only these"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    findings = _kept(options.results)
    known = {finding.trial["number"] for finding in findings}
    deadline = time.monotonic() + options.seconds
    for number in range(options.runs):
        what = trial(number, options.seed)
        if number in known or (options.kinds and what.kind not in options.kinds):
            continue
        if time.monotonic() > deadline:
            break
        with witness_stalls() as stalled_s:
            finding = run_trial(what)
        findings.append(replace(finding, stalled_s=round(stalled_s(), 4)))
        with options.results.open("a") as file:
            file.write(json.dumps(vars(findings[-1])) + "\n")
        print(_line(findings[-1]), file=sys.stderr)
    found = judge(findings)
    if not options.kinds:
        found["known_servers_wrong"] = wrong = _measure_known_servers()
        found["passed"] = found["passed"] and not wrong
    if options.json:
        table = {"kinds": by_kind(findings)}
        print(
            json.dumps(
                found | table | {"findings": [vars(finding) for finding in findings]}, indent=1
            )
        )
    else:
        _show(findings, found)
    return 0 if found["passed"] else 1


def _measure_known_servers() -> dict[str, list[str]]:
    """Return what is wrong with the results against each known server."""
    wrong = {}
    for name, problems in measure_all():
        print(f"known server {name}: {'; '.join(problems) or 'ok'}", file=sys.stderr)
        if problems:
            wrong[name] = problems
    return wrong


def _kept(path: Path) -> list[Finding]:
    lines = path.read_text().splitlines() if path.is_file() else []
    return [Finding(**json.loads(line)) for line in lines]


def _line(finding: Finding) -> str:
    what = finding.trial
    return (
        f"{what['number']:4} {what['kind']:14}{what['severity']:8g} TTFT p99 "
        f"{finding.ttft_shift:+8.1%} load {-finding.load_short:+7.1%} "
        f"failed {finding.failed_share:6.1%} {finding.verdict or '-':9}"
        f"{'SPOILED ' if finding.is_spoiled else ''}{'DISTURBED ' if finding.is_disturbed else ''}"
        f"{' '.join(finding.fired)}"
    )


def by_kind(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return a row for each kind of starvation: runs, spoiled runs, and their verdicts."""
    rows = []
    for kind in (*HONEST, *STARVED, *NASTY):
        tally = Tally()
        for finding in findings:
            if finding.trial["kind"] == kind:
                tally.add(finding)
        verdicts = {name.replace(" ", "_"): tally.verdicts[name] for name in VERDICTS}
        rows.append(
            {"kind": kind, "runs": sum(verdicts.values()), "spoiled": tally.spoiled}
            | verdicts
            | {"missed": tally.spoiled_valid, "disturbed": tally.disturbed, "alarms": tally.alarms}
            | {"checks": ", ".join(f"{name} {n}" for name, n in tally.checks.most_common(5))}
        )
    return rows


def _known_servers(found: dict[str, Any]) -> str:
    wrong = found.get("known_servers_wrong")
    return "" if wrong is None else f"{len(wrong)} of {len(SERVERS)} known servers wrong: "


def _show(findings: list[Finding], found: dict[str, Any]) -> None:
    rows = by_kind(findings)
    columns = [name for name in rows[0] if name not in ("kind", "checks")]
    print(f"{'kind':14}" + "".join(f"{name:>11}" for name in columns) + "  checks that fired")
    for row in filter(lambda row: row["runs"], rows):
        counts = "".join(f"{row[name]:>11}" for name in columns)
        print(f"{row['kind']:14}{counts}  {row['checks']}")
    print(
        f"{found['runs']} runs, {found['spoiled']} spoiled by the server's account, "
        f"{len(found['spoiled_called_valid'])} of them called valid; {found['honest']} honest and "
        f"unspoiled, {found['honest_not_called_valid']} of them not called valid; "
        f"{found['disturbed']} more disturbed by the host, "
        f"{found['disturbed_not_called_valid']} of those not called valid; "
        f"{_known_servers(found)}"
        f"{'passed' if found['passed'] else 'FAILED'}"
        f"{'' if found['is_proof'] else f', with fewer than {ENOUGH} honest runs'}"
    )


if __name__ == "__main__":
    sys.exit(main())
