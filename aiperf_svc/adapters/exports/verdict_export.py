"""`verdict.json`: the verdict on the run, with its reasons."""

from typing import Any

import msgspec

from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.verdict.check_result import Reason


def render(summary: Summary) -> bytes:
    """Render the file's content."""
    return msgspec.json.format(msgspec.json.encode(export(summary)), indent=1) + b"\n"


def export(summary: Summary) -> dict[str, Any]:
    """Return the file's content: `reasons` are the checks that did not pass, the worst first;
    `checks` are all of them."""
    verdict = summary.verdict
    return {
        "verdict": verdict.verdict,
        "cause": verdict.cause,
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "checks": [_reason(reason) for reason in verdict.checks],
        "slo": summary.objectives,
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {"ok": reason.ok, **msgspec.structs.asdict(reason)}
