"""The reports of several simultaneous runs, and of an experiment across several runs, with the
sentences that the terminal prints too."""

from aiperf_svc.adapters.report import experiment_page
from aiperf_svc.adapters.report.blocks import (
    Block,
    Cell,
    Details,
    Header,
    Heading,
    Note,
    Row,
    Table,
    document,
    number_row,
    report_cell,
    section,
    sentence,
    table,
    table_blocks,
)
from aiperf_svc.adapters.report.experiment_texts import counts
from aiperf_svc.core.experiments.joint_trials import ExperimentMember, JointExperiment, widest_start
from aiperf_svc.core.results.cache_stats import cache_tables
from aiperf_svc.core.results.joint_result import Joint, JointMember, rows

HEAD = ("Name", Cell("Where", "text"), Cell("Outcome", "text"))
JOINING_TEXT = (
    "Total: counts are sums, percentiles are over all requests, and rates are over the time that "
    "all loads have in common"
)

NO_TOTAL = "no trial has a total: each failed in a run, or a run has no records of it"
"""Shown instead of `JOINING_TEXT` for an experiment whose `has_total` is false."""


def start(joint: Joint) -> str:
    """Describe how close the starts were; empty if there were fewer than two."""
    return _starts("requests", joint.start_spread_ms, joint.start_uncertainty_ms)


def starts(joint: JointExperiment) -> str:
    """Describe how close the starts of the trials were; empty if there were fewer than two."""
    spread_ms, uncertainty_ms = widest_start(each for _, each in joint.trials) or (None, None)
    return _starts("requests of each trial", spread_ms, uncertainty_ms)


def _starts(subject: str, spread_ms: float | None, uncertainty_ms: float | None) -> str:
    if spread_ms is None or uncertainty_ms is None:
        return ""
    return (
        f"first measured {subject} within {spread_ms:.1f} ms of each other, "
        f"with a clock uncertainty of ± {uncertainty_ms:.1f} ms"
    )


def joining_text(joint: Joint) -> str:
    """Describe how the total is computed; empty if there is none."""
    if not joint.total:
        return ""
    return f"{JOINING_TEXT}, {joint.interval_s:.1f} s" if joint.interval_s else JOINING_TEXT


def end(member: ExperimentMember) -> str:
    """Describe how the trials of a run ended."""
    left_out = member.summary.left_out
    parts = [member.state, counts(member.summary)]
    parts += [f"{len(left_out):,} left out"] if left_out else []
    parts += [member.reason] if member.reason else []
    return ", ".join(parts)


def outcome(member: JointMember) -> str:
    """Describe how a run ended."""
    parts = [member.state]
    parts += [f"verdict {member.verdict}"] if member.verdict else []
    parts += [member.cause] if member.cause and member.verdict != "valid" else []
    parts += [member.reason] if member.reason else []
    return ", ".join(parts)


def render(joint: Joint) -> bytes:
    """Render the page of several runs."""
    members = [_member(each, outcome(each), each.verdict or "invalid") for each in joint.members]
    blocks = [
        Header(joint.name, [f"{len(joint.members)} {joint.kind}", start(joint)]),
        table(HEAD, members),
        Heading(f"{joint.kind.capitalize()} and total"),
        columns(joint, is_short=True),
        *table_blocks(cache_tables(joint.cache)),
        *(Note(sentence(note)) for note in (joining_text(joint), *joint.notes) if note),
        Details("All metrics", [columns(joint, is_short=False)]),
    ]
    return document(joint.name, blocks)


def _member(each: JointMember | ExperimentMember, ended: str, tone: str = "") -> Row:
    name = report_cell(each.name, each.folder)
    return Row([name, Cell(each.where, "text"), Cell(ended, "wide")], tone)


def columns(joint: Joint, *, is_short: bool) -> Table:
    """Return a table with a column for each run or target and for the total."""
    head = ("Metric", *(each.name for each in joint.members), "total")
    shown = [row.shown for row in rows(joint, is_short=is_short)]
    return table(
        head, [number_row(each.name, each.unit, (*each.values, each.total)) for each in shown]
    )


def render_experiment(joint: JointExperiment) -> bytes:
    """Render the page of an experiment: the total in full, and the combinations of each run."""
    members = [_member(each, end(each)) for each in joint.members]
    blocks: list[Block] = [
        Header(joint.name, [f"{len(joint.members)} {joint.kind}", starts(joint)]),
        table(HEAD, members),
    ]
    if joint.has_total:
        blocks += [Heading("Total"), Note(f"{'. '.join((JOINING_TEXT, *joint.notes))}.")]
        blocks += experiment_page.sections(joint.total, joint.search)
    else:
        blocks += [Note(sentence(note)) for note in (NO_TOTAL, *joint.notes)]
    for each in joint.members:
        if each.summary.rows:
            # A problem of a run also appears in the total, if there is one.
            wrong = [] if joint.has_total else experiment_page.problems(each.summary)
            blocks += section(each.name, *wrong, *experiment_page.combinations(each.summary))
    return document(joint.name, blocks)
