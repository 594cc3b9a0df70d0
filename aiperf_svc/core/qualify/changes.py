"""Compares two qualifications node by node."""

from collections.abc import Iterator

import msgspec

from aiperf_svc.core.qualify.measurements import SHARE, is_worse
from aiperf_svc.core.qualify.result import CheckInfo, CheckResult, Qualification


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one node in both qualifications."""

    node: str
    """Empty: all nodes together."""
    check: str
    unit: str
    base: float | None
    """None: not measured, or new."""
    new: float | None
    """None: not measured, or gone."""
    base_verdict: str
    """Empty: the node or the check is new."""
    new_verdict: str
    """Empty: the node or the check is gone."""
    change: str
    """`better` or `worse` by more than the tolerance, `same`, `new` if the base has no value,
    `gone` or `not measured`."""

    @property
    def is_worse(self) -> bool:
        """Whether the new qualification is worse than the base: a worse value, or none."""
        return self.change in ("worse", "gone", "not measured")

    @property
    def share(self) -> float | None:
        """The new value as a share of the base's; None if one of them is unknown."""
        return self.new / self.base if self.new is not None and self.base else None


def changes(
    base: Qualification, new: Qualification, *, tolerance: float = 1 - SHARE
) -> tuple[NodeChange, ...]:
    """Return the changes of all checks, by node. A check on one side only is new or gone."""
    infos = {info.check: info for info in (*base.checks, *new.checks)}
    before, after = dict(_results(base)), dict(_results(new))
    return tuple(
        _change(node, infos[check], before.get((node, check)), after.get((node, check)), tolerance)
        for node, check in dict.fromkeys((*before, *after))
    )


def _results(found: Qualification) -> Iterator[tuple[tuple[str, str], CheckResult]]:
    for node in found.nodes:
        for each in node.checks:
            yield (node.node, each.check), each
    for each in found.all:
        yield ("", each.check), each


def _change(
    node: str,
    info: CheckInfo,
    base: CheckResult | None,
    new: CheckResult | None,
    tolerance: float,
) -> NodeChange:
    min_share = 1 - tolerance
    before, after = (each.value if each is not None else None for each in (base, new))
    if new is None:
        change = "gone"
    elif after is None:
        change = "new" if base is None else "not measured"
    elif before is None:
        change = "new"
    elif is_worse(after, before, info.better, min_share):
        change = "worse"
    else:
        change = "better" if is_worse(before, after, info.better, min_share) else "same"
    return NodeChange(
        node=node,
        check=info.check,
        unit=info.unit,
        base=before,
        new=after,
        base_verdict=base.verdict.value if base is not None else "",
        new_verdict=new.verdict.value if new is not None else "",
        change=change,
    )
