"""`report.html` of a qualification: verdicts on nodes and paths, and a heat map of the pairs."""

from collections.abc import Mapping
from urllib.parse import quote

from aiperf_svc.adapters.report.blocks import (
    Block,
    Box,
    Cell,
    Code,
    Details,
    Header,
    Matrix,
    Note,
    Plots,
    Row,
    Table,
    document,
    name_cell,
    number_cell,
    section,
    table,
)
from aiperf_svc.adapters.report.tool_charts import pair_matrix
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.core.experiments.summary import ExperimentSummary
from aiperf_svc.core.qualify.result import CheckInfo, CheckResult, Qualification, Verdict
from aiperf_svc.domain.number_text import count, readable_unit

TONES = {
    Verdict.DEGRADED: "degraded",
    Verdict.FAIL: "invalid",
    Verdict.NOT_MEASURED: "invalid",
}
"""CSS class of each verdict other than `pass`."""


def render(found: Qualification, summary: ExperimentSummary, config: Config) -> bytes:
    blocks: list[Block] = [
        Header(config.name, ["qualification", count(len(found.nodes), "node"), _stages(found)]),
        Box("invalid" if found.has_failed else "valid", found.result),
        *([Box("degraded", text) for text in found.warnings]),
        *section("Nodes", _nodes(found)),
        *section("Paths that did not pass", _paths(found)),
        *section("All nodes together", _all_nodes(found)),
        Plots([heat for info in found.checks if (heat := heat_map(found, info)) is not None]),
        _trials(summary),
        Details("Configuration", [Code(yaml_text(config.model_dump(mode="json")))]),
    ]
    return document(config.name, blocks)


def units_of(found: Qualification) -> dict[str, tuple[CheckInfo, float, str]]:
    """Return each check with the divisor and name of a unit in which its values are short."""
    maxima = dict.fromkeys((info.check for info in found.checks), 0.0)
    results = [result for node in found.nodes for result in node.checks]
    for each in (*results, *found.all):
        maxima[each.check] = max(maxima[each.check], each.value or 0.0)
    return {
        info.check: (info, *readable_unit(info.unit, maxima[info.check])) for info in found.checks
    }


def _stages(found: Qualification) -> str:
    return ", ".join(
        f"{each.name} ({each.ended:,} of {each.planned:,} rounds)"
        if each.nodes == "pairs"
        else each.name
        for each in found.stages
    )


def _nodes(found: Qualification) -> Table:
    infos = [each for each in units_of(found).values() if each[0].nodes != "all"]
    head = [Cell("Node"), Cell("Verdict", "text")]
    head += [Cell(f"{info.stage}: {info.name}", "wrap", unit=unit) for info, _, unit in infos]
    head.append(Cell("Why", "text"))
    rows = []
    for node in found.nodes:
        by_check = {each.check: each for each in node.checks}
        cells = [name_cell(node.node), Cell(node.verdict.value, "state")]
        cells += [number_cell(by_check[info.check].value, per=per) for info, per, _ in infos]
        cells.append(Cell("; ".join(filter(None, map(why, node.checks))), "wide"))
        rows.append(Row(cells, TONES.get(node.verdict, "")))
    return table(head, rows)


def why(result: CheckResult) -> str:
    """Return the reason why a check did not pass, with its peer; empty if it passed."""
    if not result.reason:
        return ""
    peer = f", worst with {result.peer}" if result.peer else ""
    return f"{result.check}: {result.reason}{peer}"


def _paths(found: Qualification) -> Table:
    rows, units = [], units_of(found)
    for path in found.paths:
        check, verdict, *rest = _checked(path.result, units)
        cells = [name_cell(f"{path.source} → {path.target}"), verdict, Cell(check.text), *rest]
        rows.append(Row(cells, TONES.get(path.result.verdict, "")))
    return table(("Path", "Verdict", "Check", "Value", Cell("Why", "text")), rows)


def _all_nodes(found: Qualification) -> Table:
    units = units_of(found)
    rows = [Row(_checked(each, units), TONES.get(each.verdict, "")) for each in found.all]
    return table(("Check", "Verdict", "Value", Cell("Why", "text")), rows)


def _checked(result: CheckResult, units: Mapping[str, tuple[CheckInfo, float, str]]) -> list[Cell]:
    """Return the check, verdict, value and reason."""
    info, per, unit = units[result.check]
    return [
        name_cell(f"{info.stage}: {info.name}"),
        Cell(result.verdict.value, "state"),
        number_cell(result.value, per=per, unit=unit),
        Cell(result.reason, "wide"),
    ]


def heat_map(found: Qualification, info: CheckInfo) -> Matrix | None:
    """Return the values of a check by pair of nodes, from row to column; None without values."""
    values = {(p.source, p.target): p.value for p in found.pairs if p.check == info.check}
    if not values:
        return None
    # A test without a direction has one value for both directions.
    if not any((target, source) in values for source, target in values):
        values |= {(target, source): value for (source, target), value in values.items()}
    _, per, unit = units_of(found)[info.check]
    title, names = f"{info.stage}: {info.name} between nodes", [node.node for node in found.nodes]
    note = f"{unit}, from row to column" if unit else "from row to column"
    return pair_matrix(title, note, values, (names, names), better=info.better, per=per)


def _trials(summary: ExperimentSummary) -> Details:
    rows = []
    for each in summary.rows:
        folder = quote(each.outcome.folder)
        link = f"trials/{folder}/report.html" if each.measured is not None else ""
        parameters = [str(v) for v in each.outcome.trial.parameters.values() if v is not None]
        verdict = each.measured.verdict if each.measured is not None else each.outcome.state
        cells = [Cell(str(each.number), link=link), Cell(", ".join(parameters), "wide")]
        rows.append(Row([*cells, Cell(verdict, "state")]))
    note = Note("A trial is a stage, a round of pairs, or a stage repeated for its suspects.")
    return Details("All trials", [table(("Trial", "What", "Verdict"), rows), note])
