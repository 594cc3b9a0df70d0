"""`verdict.json`: the verdict on the run, with its reasons."""

from collections.abc import Sequence

import msgspec

from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.verdict.check_result import Reason, Verdict


def render(summary: Summary) -> bytes:
    """Render the file's content for an inference benchmark."""
    return render_verdict(summary.verdict, summary.objectives)


def render_verdict(verdict: Verdict, objectives: Sequence[ObjectiveResult]) -> bytes:
    """Render the file's content: `reasons` are the checks that did not pass, the worst first;
    `checks` are all of them."""
    content = {
        "verdict": verdict.verdict,
        "cause": verdict.cause,
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "checks": [_reason(reason) for reason in verdict.checks],
        "slo": objectives,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _reason(reason: Reason) -> dict[str, object]:
    return {"ok": reason.ok, **msgspec.structs.asdict(reason)}
