"""`scaling.csv`: a row for each replica that started, with the decision that created it. A decision
without all of its replicas has a row without a replica."""

from collections.abc import Sequence

from aiperf_svc.adapters.exports.file_content import csv_file
from aiperf_svc.core.scaling.report import MOMENTS, ReplicaTimeline, ScaleUp, ScalingResult
from aiperf_svc.domain.foreign_text import csv_cell

NAME = "scaling.csv"
DECISION = (
    *("source", "reason", "before", "after", "load_changed_s", "desired_s", "decision_s"),
    *("scale_up_s", "use_s", "recovery_s"),
)


def render_csv(found: ScalingResult) -> bytes:
    """Render the file. Times are in seconds; times of events are relative to the start of the load.
    An unknown time is an empty cell."""
    lines: list[Sequence[object]] = []
    moments = (f"{name}_s" for name in MOMENTS)
    lines.append(("replica", "node", "gpus", "image", *moments, "gone_s", "idle_s", *DECISION))
    decisions = {name: up for up in found.scale_ups for name in up.replicas}
    for each in found.replicas:
        lines.append((*_replica(each), *_decision(decisions.get(each.name))))
    for up in found.scale_ups:
        if len(up.replicas) < up.after - up.before:
            lines.append((*[""] * (len(MOMENTS) + 6), *_decision(up)))
    return csv_file(lines)


def _replica(each: ReplicaTimeline) -> list[str]:
    texts = [csv_cell(text) for text in (each.name, each.node)]
    moments = (_number(each.moments_s.get(name)) for name in MOMENTS)
    ends = (_number(each.gone_s), _number(each.idle_s))
    return [*texts, str(each.gpus), csv_cell(each.image), *moments, *ends]


def _decision(up: ScaleUp | None) -> list[str]:
    if up is None:
        return [""] * len(DECISION)
    values = (getattr(up, name) for name in DECISION)
    return [csv_cell(v) if isinstance(v, str) else _number(v) for v in values]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"
