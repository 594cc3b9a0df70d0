"""The files of a qualification: `qualify.json`, and `qualify.csv` with a row for each check of a
node, of a path, or of all nodes together."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from aiperf_svc.adapters.exports.file_content import check_schema, csv_file, read_json
from aiperf_svc.core.qualify.result import SCHEMA, CheckResult, Qualification, Verdict
from aiperf_svc.domain.foreign_text import csv_cell

JSON_NAME = "qualify.json"
CSV_NAME = "qualify.csv"
HEAD = (
    *("kind", "node", "target", "check", "unit", "verdict", "value", "limit", "median", "repeated"),
    *("peer", "reason"),
)


def render_csv(found: Qualification) -> bytes:
    """Return the content of qualify.csv. An unknown number is an empty cell."""
    units = {info.check: info.unit for info in found.checks}
    lines: list[Sequence[object]] = [HEAD]
    for kind, node, target, each in rows(found):
        lines.append(
            (
                *(kind, csv_cell(node), csv_cell(target), each.check, units[each.check]),
                *(each.verdict.value, each.value, each.limit, each.median, each.repeated),
                *(csv_cell(each.peer), csv_cell(each.reason)),
            )
        )
    return csv_file(lines)


def rows(found: Qualification) -> Iterator[tuple[str, str, str, CheckResult]]:
    """Yield each check with its kind (`node`, `path` or `all`), its node, and a path's target."""
    for node in found.nodes:
        for each in node.checks:
            yield "node", node.node, "", each
    for path in found.paths:
        yield "path", path.source, path.target, path.result
    for each in found.all:
        yield "all", "", "", each


def is_qualification(folder: Path) -> bool:
    return (folder / JSON_NAME).is_file()


def read_qualification(folder: Path) -> Qualification:
    """Read the qualify.json of a folder. Raises ConfigError."""
    path = folder / JSON_NAME
    expected = "the folder of a qualification that has ended"
    found = read_json(path, Qualification, expected=expected)
    check_schema(path, found.schema_version, SCHEMA)
    return found


def baseline_of(found: Qualification) -> dict[str, dict[str, float]]:
    """Return the passing values as `workload.baseline` of a later qualification, by check and node.
    The median of all nodes has the node `""`. With degraded values in the baseline, a node could
    become a little worse each time."""
    values: dict[str, dict[str, float]] = {}
    for node in found.nodes:
        for each in node.checks:
            if each.value is not None and each.verdict is Verdict.PASS:
                values.setdefault(each.check, {})[node.node] = each.value
    for rows in values.values():
        rows[""] = median(rows.values())
    for each in found.all:
        if each.value is not None and each.verdict is Verdict.PASS:
            values[each.check] = {"": each.value}
    return values
