"""Prints the outcome of a run: tables for people, or one JSON object for programs. Rich is slow to
import, so this module is imported at the end of a run."""

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from aiperf_svc.adapters.terminal.inference_tables import print_inference_result
from aiperf_svc.adapters.terminal.output import console_on, print_json
from aiperf_svc.adapters.terminal.tool_tables import print_tool_result
from aiperf_svc.adapters.terminal.verdict_lines import print_text
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.domain.foreign_text import lines, one_line
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome

ENDINGS = {"failed": ("Failed: ", "bold red"), "cancelled": ("Stopped early: ", "yellow")}


def print_outcome(outcome: RunOutcome, options: RunOptions) -> None:
    """Print tables to standard output, or to standard error with `--json`."""
    with console_on(sys.stderr if options.json else sys.stdout) as console:
        print_results(outcome, console)
    if options.json:
        print_json(outcome.as_json())


def print_results(outcome: RunOutcome, console: Console) -> None:
    """Print everything about a finished run."""
    if outcome.results is not None:
        console.print()
    match outcome.results:
        case InferenceResult() as results:
            print_inference_result(results, console)
        case ToolResult() as results:
            print_tool_result(results, console)
        case ExperimentResult() as results if outcome.artifacts is not None:
            _print_experiment(results, outcome.artifacts, console)
    _print_end(outcome, console)


def _print_experiment(results: ExperimentResult, folder: Path, console: Console) -> None:
    if results.qualification is not None:
        from aiperf_svc.adapters.terminal.qualify_tables import print_qualification

        print_qualification(results.qualification, console)
        return
    # Only experiments need these imports.
    from aiperf_svc.adapters.storage.experiment_artifacts import read_outcomes
    from aiperf_svc.adapters.terminal.experiment_tables import print_experiment, print_scenarios
    from aiperf_svc.core.experiments.summary import summarise

    found = summarise(read_outcomes(folder, results.trials))
    print_experiment(found, console, results.search)
    print_scenarios(folder, console)


def _print_end(outcome: RunOutcome, console: Console) -> None:
    text = outcome.reason or ("" if outcome.results else "nothing was measured")
    if text:
        prefix, style = ENDINGS.get(outcome.state, ("", "bold red"))
        print_text(console, Text(f"{prefix}{lines(text)}", style=style))
    if outcome.artifact_error:
        print_text(console, Text(f"error: {lines(outcome.artifact_error)}", style="bold red"))
    if outcome.artifacts is not None:
        report = outcome.artifacts / "report.html"
        where = report if report.is_file() else f"{outcome.artifacts}/"
        console.print(Text(f"Artifacts: {where}"), soft_wrap=True)
        if outcome.was_interrupted and isinstance(outcome.results, ExperimentResult):
            resume_text = (
                f"to run the remaining trials: the same command with --resume {outcome.artifacts}"
            )
            console.print(Text(resume_text), soft_wrap=True)
    if outcome.uploaded_to:
        console.print(Text(f"Uploaded: {outcome.uploaded_to}/"), soft_wrap=True)
    if outcome.left:
        console.print(Text("Left behind:", style="bold red"))
        for each in outcome.left:
            print_text(console, Text(f"  {one_line(each)}"))
