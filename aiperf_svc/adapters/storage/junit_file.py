"""JUnit XML of finished runs and comparisons, for forges that show test cases.

Each check of a verdict, each objective and each row of a comparison is a test case. A violation is
a `failure`. An unjudged case is an `error`, so it is never mistaken for a success. A degraded check
passes, as in the exit code, and its output gives the reason.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree

import msgspec

from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.adapters.exports.file_content import read_json
from aiperf_svc.adapters.exports.qualify_export import is_qualification, read_qualification, rows
from aiperf_svc.adapters.exports.result_files import JOINT_FILE, find_results, read_run
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.core.compare.comparison import ComparisonRow, Word
from aiperf_svc.core.compare.groups import Comparisons
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.joint_result import MemberEnd
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import lines
from aiperf_svc.domain.number_text import exact, significant
from aiperf_svc.protocol.run_states import RunState

VERDICT = "verdict.json"
COMMAND = "aiperf-svc"
"""Suite of the command itself, which is in every file."""

EXPLAINED = (
    ExitCode.BENCHMARK_FAILED,
    ExitCode.SLO_MISSED,
    ExitCode.SLO_NOT_JUDGED,
    ExitCode.VERDICT_INVALID,
    ExitCode.WORSE,
    ExitCode.INCOMPARABLE,
)
"""Exit codes that the test cases explain."""


class Case(NamedTuple):
    suite: str
    name: str
    problem: str = ""
    """Reason why it did not pass; empty if it passed."""
    kind: Literal["failure", "error"] = "failure"
    """`error`: not judged."""
    output: str = ""
    """Remark on a case that passed."""


class _Checks(msgspec.Struct):
    checks: tuple[Reason, ...] = ()


class _Member(MemberEnd, frozen=True, kw_only=True):
    problem: str = ""


class _Joint(msgspec.Struct):
    """The part of `joint.json` that runs and experiments share."""

    members: tuple[_Member, ...]


def write_runs(path: Path, folder: Path | None, code: ExitCode, reason: str) -> None:
    """Write the test cases of all runs in an artifact folder, and how the command ended. With exit
    code 0 no case fails: a sweep succeeds although some of its trials miss an objective, which is
    then in their output. Raises ConfigError for unreadable results, and EnvironmentProblem."""
    cases = [] if folder is None else list(cases_of(folder))
    if code is ExitCode.OK:
        cases = [case._replace(problem="", output=case.problem or case.output) for case in cases]
    write_cases(path, cases, code, reason)


def write_cases(path: Path, cases: Iterable[Case], code: ExitCode, reason: str) -> None:
    """Write the file. If the command failed for a reason that no case explains, the command itself
    is an error. Raises EnvironmentProblem."""
    all_cases = list(cases)
    is_explained = code in EXPLAINED and any(case.problem for case in all_cases)
    is_explained = is_explained or code is ExitCode.OK
    problem = "" if is_explained else reason or f"exit code {int(code)}"
    all_cases.append(Case(COMMAND, "command", problem, "error", f"exit code {int(code)}"))
    write_file(path, lambda: render(all_cases))


def cases_of(folder: Path, suite: str = "") -> Iterator[Case]:
    """Yield the cases of a run, an experiment, a qualification, or several targets or clusters. The
    suite of a run is its name and, in an experiment, its trial's folder, so forges can track a case
    across nightly runs. Raises ConfigError."""
    if is_qualification(folder):
        yield from _qualification(folder)
    elif is_experiment(folder):
        experiment = read_experiment_file(folder)
        for trial in experiment.trials:
            name = f"{suite or experiment.config['name']}/{trial.folder}"
            if trial.state != RunState.DONE:
                yield Case(name, "trial", trial.reason or trial.state, "error")
            else:
                yield from cases_of(folder / TRIALS / trial.folder, name)
    elif (results := find_results(folder)) is not None:
        result = read_run(results)
        yield from _run(folder, result, suite or result.name)
    elif (path := folder / JOINT_FILE).is_file():
        for each in read_json(path, _Joint, expected="the results of several runs").members:
            yield from _member(folder, each)
    elif folder.is_dir():
        for member in sorted(each for each in folder.iterdir() if each.is_dir()):
            if is_experiment(member) or find_results(member) is not None:
                yield from cases_of(member, member.name)


def _run(folder: Path, result: RunResult, suite: str) -> Iterator[Case]:
    if not result.has_succeeded:
        yield Case(suite, "run", result.problem or "nothing succeeded")
    path = folder / VERDICT
    checks = result.reasons
    if path.is_file():
        checks = read_json(path, _Checks, expected="the checks of a verdict").checks
    yield from (_check(suite, "verdict", each) for each in _judged(checks))
    if isinstance(result, InferenceResult):
        if result.system is not None:
            yield from (_check(suite, "system", each) for each in _judged(result.system.checks))
        if result.quality is not None:
            yield Case(suite, "quality gate", result.quality.problem)
    yield from (_objective(suite, each) for each in result.slo)


def _member(folder: Path, member: _Member) -> Iterator[Case]:
    """Yield the cases of a target or cluster. The first case is how its run ended, because it may
    have no results."""
    suite = member.folder or member.name
    found = list(cases_of(folder / suite, suite)) if member.folder else []
    problem = member.problem
    if member.state != RunState.DONE:
        problem = problem or member.reason or member.state
    elif not found:
        problem = problem or "no results"
    yield Case(suite, "state", problem, "error")
    yield from found


def _judged(checks: Iterable[Reason]) -> Iterator[Reason]:
    return (each for each in checks if each.severity is not Severity.INFO)


def _check(suite: str, whose: str, check: Reason) -> Case:
    is_invalid = check.severity is Severity.INVALID
    text = "; ".join(filter(None, (check.text, check.remedy if not check.ok else "")))
    output = text if check.severity is Severity.DEGRADED else ""
    return Case(suite, f"{whose}: {check.check}", text if is_invalid else "", output=output)


def _objective(suite: str, each: ObjectiveResult) -> Case:
    bound = "at most" if each.bound == "max" else "at least"
    name = f"SLO: {each.metric} {each.stat} {bound} {exact(each.limit)} {each.unit}".rstrip()
    problem = "" if each.ok else each.text
    return Case(suite, name, problem, "failure" if each.judged else "error")


def _qualification(folder: Path) -> Iterator[Case]:
    for kind, node, target, each in rows(read_qualification(folder)):
        suite = f"{kind} {node} to {target}" if target else f"{kind} {node or 'nodes'}"
        problem = each.reason or each.verdict if each.verdict.has_failed else ""
        yield Case(suite, each.check, problem, output=each.reason)


def comparison_cases(found: Comparisons) -> Iterator[Case]:
    """Yield a case for each relevant row, and for each combination that is not compared."""
    for group in found.groups:
        suite = group.name or "comparison"
        yield from (_row(suite, each) for each in group.rows if each.gates)
        for key in group.one_sided:
            yield Case(suite, f"{key.tag} {key.stat}".rstrip(), "only one side has it", "error")
    for each in found.skipped:
        yield Case(each.name, "comparison", each.reason, "error")


def _row(suite: str, row: ComparisonRow) -> Case:
    low_high = "" if row.low is None else f", 95% interval {row.low:+.1%} to {row.high:+.1%}"
    base, new = significant(row.base.mean), significant(row.new.mean)
    text = f"{row.word}: {base} to {new} {row.info.unit} ({row.delta:+.1%}{low_high})"
    name = f"{row.info.name} {row.key.stat}".rstrip()
    if row.word is Word.UNJUDGED:
        why = "; ".join(note[2:] for note in row.notes if note.startswith("? "))
        return Case(suite, name, f"{why}: {text}" if row.base.n else why, "error")
    return Case(suite, name, text if row.word is Word.WORSE else "", output=text)


def render(cases: Iterable[Case]) -> bytes:
    """Render the cases as one JUnit file with a suite for each run, in order."""
    all_cases, suites = list(cases), dict[str, list[Case]]()
    for case in all_cases:
        suites.setdefault(case.suite, []).append(case)
    root = ElementTree.Element("testsuites", {"name": COMMAND} | _counts(all_cases))
    for suite, members in suites.items():
        attributes = {"name": lines(suite)} | _counts(members)
        parent = ElementTree.SubElement(root, "testsuite", attributes)
        for case in members:
            _add(parent, case)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _counts(cases: list[Case]) -> dict[str, str]:
    broken = [case.kind for case in cases if case.problem]
    return {
        "tests": str(len(cases)),
        "failures": str(broken.count("failure")),
        "errors": str(broken.count("error")),
        "skipped": "0",
    }


def _add(parent: ElementTree.Element, case: Case) -> None:
    names = {"classname": lines(case.suite), "name": lines(case.name)}
    element = ElementTree.SubElement(parent, "testcase", names)
    if case.problem:
        text = lines(case.problem)
        broken = ElementTree.SubElement(element, case.kind, message=text.splitlines()[0])
        broken.text = text
    elif case.output:
        ElementTree.SubElement(element, "system-out").text = lines(case.output)
