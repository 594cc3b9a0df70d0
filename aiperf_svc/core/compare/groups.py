"""Compares experiments: one comparison for each combination of parameters on both sides.

All groups together are one family of tests, so the correction for several rows covers the rows of
all groups.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from aiperf_svc.core.compare.comparison import (
    Comparison,
    ComparisonRow,
    Criteria,
    compare,
    corrected,
)
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.domain.errors import Incomparable

SCHEMA = "comparisons/1"
DEFAULT = Criteria()


class Group(NamedTuple):
    """The runs of one combination of parameters."""

    name: str
    """Parameters; empty if there are none."""
    base: Sequence[MeasuredRun]
    new: Sequence[MeasuredRun]


class Skipped(msgspec.Struct, frozen=True):
    name: str
    reason: str


class Comparisons(msgspec.Struct, frozen=True, kw_only=True):
    """Several comparisons. `compare --json` prints them unchanged."""

    schema_version: str = SCHEMA
    groups: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]

    @property
    def is_worse(self) -> bool:
        """True if a gating row is worse in any comparison."""
        return any(each.is_worse for each in self.groups)

    @property
    def is_judged(self) -> bool:
        """True if every combination is compared and judged."""
        return not self.skipped and all(each.is_judged for each in self.groups)

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        return tuple(row for each in self.groups for row in each.rows)

    @property
    def tolerance(self) -> float:
        return self.groups[0].tolerance


def group_of(found: Comparison, groups: Iterable[Group]) -> Group:
    """Return the group of a comparison, whose name may be ambiguous: long values are cut."""
    first = found.base.runs[0].run_id
    return next(each for each in groups if any(run.run_id == first for run in each.base))


def compare_groups(groups: Iterable[Group], criteria: Criteria = DEFAULT) -> Comparisons:
    """Compare each group as `compare` does. A group that cannot be compared is skipped and named.

    Raises Incomparable if no group can be compared, and ConfigError like `compare`.
    """
    groups = list(groups)
    if len(groups) == 1 and not groups[0].name:
        only = compare(groups[0].base, groups[0].new, criteria)
        return Comparisons(groups=(only,), skipped=())
    found: list[Comparison] = []
    skipped: list[Skipped] = []
    for name, base, new in groups:
        if not base or not new:
            skipped.append(Skipped(name, f"only {'base' if base else 'new'} has it"))
            continue
        try:
            one = compare(base, new, criteria)
        except Incomparable as error:
            skipped.append(Skipped(name, str(error)))
            continue
        found.append(replace(one, name=name))
    if not found:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in skipped)
        raise Incomparable(f"no combination of parameters can be compared: {reasons}")
    rows = iter(corrected([row for each in found for row in each.rows], criteria.tolerance))
    return Comparisons(
        groups=tuple(replace(each, rows=tuple(islice(rows, len(each.rows)))) for each in found),
        skipped=tuple(skipped),
    )
