"""The documented output of `verify` is that of recorded runs under the current rules."""

import re
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from aiperf_svc.adapters.terminal.rules_tables import print_report
from aiperf_svc.core.rules import agentx, mlperf_endpoints
from aiperf_svc.core.rules.measured_point import MeasuredPoint
from tests.support.terminal import on_console

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "agentic.md"
RECORDED = ROOT / "tests" / "data" / "rules"
SHOWN = {
    mlperf_endpoints: {
        *("max-concurrency-declared", "region-computation", "offline-point-present"),
        *("load-pattern", "point-duration", "reference-client", "seed-set-membership"),
    },
    agentx: {
        *("load.agentic.trajectory_idle_cap", "random_seed", "live-session-trees", "duration"),
        *("forced-length", "errors", "context-overflow"),
    },
}
"""Requirements of each set of rules that the page shows."""
ROW = re.compile(r" (?:met|not met|not checkable here) +(\S+)")
POINT = re.compile(r" +[\d,]+ {2,}\S")
MAX_POINTS, MAX_LINES = 3, 3
"""Number of points before the last one, and of lines of a requirement."""
LEFT_OUT = "…"


def excerpt(text: str, names: Collection[str]) -> list[str]:
    """Return the lines of a printed report that a page shows."""
    lines = [line.rstrip() for line in text.splitlines()]
    middle = [line for line in lines if POINT.match(line)][MAX_POINTS:-1]
    found = list[str]()
    is_shown, count = True, 0
    for line in lines:
        if row := ROW.match(line):
            is_shown, count = row[1] in names, 0
        elif not line.startswith("  ") or POINT.match(line):
            is_shown, count = line not in middle, 0
        count += 1
        if is_shown and (count <= MAX_LINES or not line):
            found.append(line)
        elif not found or found[-1] != LEFT_OUT:
            found.append(LEFT_OUT)
    return found


@pytest.mark.parametrize("rules", SHOWN, ids=lambda rules: rules.NAME)
def test_page_shows_output_of_recorded_runs(rules: ModuleType, pytestconfig: pytest.Config) -> None:
    content = (RECORDED / f"{rules.NAME}.json").read_bytes()
    points = msgspec.json.decode(content, type=list[MeasuredPoint])
    printed = on_console(print_report, rules.verify(points), width=120)
    page = PAGE.read_text()
    begin = page.index("\n", page.index(f"$ aiperf-svc verify --rules {rules.NAME} ")) + 1
    end = page.index("```", begin)
    expected = "\n".join(excerpt(printed, SHOWN[rules])) + "\n"
    if pytestconfig.getoption("--write-samples"):
        page, end = page[:begin] + expected + page[end:], begin + len(expected)
        PAGE.write_text(page)
    assert page[begin:end] == expected, "run: pytest --write-samples tests/unit/rules"
