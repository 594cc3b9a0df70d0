"""Decides whether nodes are fit for a benchmark: ready, not short of anything, clocks right."""

from collections.abc import Sequence

from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.facts import NodeFacts
from aiperf_svc.core.telemetry.sources import CLOCK_OFF_S

SHOWN = 5
"""Nodes that a line names."""


def judge_nodes(nodes: Sequence[NodeFacts]) -> Check:
    """Check that nodes are ready and take pods."""
    ready = [each for each in nodes if each.is_ready]
    said = f"{len(ready)} of {len(nodes)} are ready"
    if not ready:
        return Check("nodes", "failed", said, "look at `kubectl describe nodes`")
    notes = []
    if lost := [each.name for each in nodes if not each.is_ready]:
        notes.append(f"not ready: {some(lost)}")
    if closed := [each.name for each in ready if not each.is_open]:
        notes.append(f"closed for new pods: {some(closed)}")
    if len(closed) == len(ready):
        return Check("nodes", "failed", "; ".join([said, *notes]), "kubectl uncordon NODE")
    if notes:
        words = "; ".join([said, *notes])
        return Check("nodes", "warning", words, "a stack uses the others; repair these")
    return Check("nodes", "ok", said)


def judge_pressure(nodes: Sequence[NodeFacts]) -> Check:
    """Check that no node is short of memory, disk or processes: it would evict pods of a run."""
    short = [f"{each.name} ({', '.join(each.pressures)})" for each in nodes if each.pressures]
    if short:
        remedy = "free what they lack, or keep a stack off them (deployment.placement)"
        return Check("pressure", "warning", some(short), remedy)
    return Check("pressure", "ok", "no node is short of memory, disk, processes or network")


def judge_clocks(nodes: Sequence[NodeFacts]) -> Check:
    """Check the clocks of nodes against the API server's, which is known to a second. Services
    measure their own offsets; a server or exporter whose clock is off is not believed."""
    known = {each.name: each.clock_ahead_s for each in nodes if each.clock_ahead_s is not None}
    if not known:
        words = "no ready node says when it last reported, by its own clock and the API server's"
        return Check("clocks", "not checked", words)
    said = f"{len(known)} of {len(nodes)} nodes"
    off = {name: ahead for name, ahead in known.items() if abs(ahead) > CLOCK_OFF_S}
    if off:
        words = some([f"{name} is {_way(ahead)}" for name, ahead in off.items()])
        return Check("clocks", "warning", f"{words} the API server", "let NTP or PTP set them")
    worst = max(known.values(), key=abs)
    if abs(worst) <= 1:
        return Check("clocks", "ok", f"{said} agree with the API server to a second")
    return Check("clocks", "ok", f"{said} are at most {abs(worst)} s off the API server")


def some(names: Sequence[str]) -> str:
    """Name the first few, and say how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _way(ahead_s: int) -> str:
    return f"{abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'}"
