"""What `holds:` of a search asks for, as an SLO of its trials, and a trial's result by it."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiperf_svc.config.search import Limit, Search
from aiperf_svc.config.slo import Objective, Slo
from aiperf_svc.core.experiments.evidence import Evidence
from aiperf_svc.core.experiments.search import TrialResult
from aiperf_svc.core.results.objective_batches import GOODPUT, allowed_share
from aiperf_svc.core.results.slo import check_slo, unknown_metric
from aiperf_svc.core.verdict.check_result import ENDED_EARLY, TARGET_FAILING
from aiperf_svc.domain.metric_catalog import CATALOG

CURVE = (
    "request_throughput:avg",
    "time_to_first_token:p99",
    "inter_token_latency:p99",
    "request_latency:p99",
    "output_token_throughput:avg",
)
"""Statistics that a search shows for each point, as far as a trial has them. A narrow terminal has
the first of them."""


def searched_slo(search: Search, slo: Slo) -> Slo:
    """Return the SLO that the trials of a search have. Raises ValueError that says what is wrong
    and what was expected."""
    holds = search.condition()
    if search.maximize is not None:
        _check_maximized(search.maximize)
        return slo
    if holds is None:
        return slo
    if not isinstance(holds, Limit):
        if not slo.goodput:
            raise ValueError(f"{search.holds!r} needs slo.goodput, the limits of a good request")
        return slo.model_copy(update={"objectives": ()})
    bound = "max" if holds.is_upper else "min"
    try:
        wanted = Objective.model_validate(
            {"metric": holds.metric, "stat": holds.stat, bound: holds.value}
        )
    except ValueError:
        expected = "expected avg, min, max, p50, p75, p90, p95 or p99"
        raise ValueError(f"{search.holds!r}: {holds.stat!r} is no statistic; {expected}") from None
    found = slo.model_copy(update={"objectives": (wanted,)})
    problems = check_slo(Slo(objectives=found.objectives, goodput=found.goodput))
    if problems:
        raise ValueError(f"{search.holds!r}: {problems[0].split(': ', 1)[1]}")
    return found


def _check_maximized(tag: str) -> None:
    metric = CATALOG.get(tag)
    if metric is None:
        raise ValueError(unknown_metric(tag))
    if metric.better != "higher":
        found = "lower is better" if metric.better == "lower" else "neither direction is better"
        raise ValueError(f"{tag!r}: {found}; name a metric whose higher values are better")


def trial_result(summary: Mapping[str, Any], search: Search) -> TrialResult:
    """Return what a trial's summary, the content of profile_export_aiperf.json, says of what is
    searched."""
    ours = summary["aiperf_svc"]
    verdict, cause = str(ours["verdict"]), str(ours["cause"])
    share = search.condition()
    early = str(ours.get("early_end", ""))
    problem = ""
    if verdict == "invalid" and cause not in (TARGET_FAILING, ENDED_EARLY):
        texts = [str(reason["text"]) for reason in ours["reasons"]]
        problem = texts[0] if texts else cause
    problem = problem or _without_data(summary)
    evidence: tuple[Evidence, ...] = ()
    if isinstance(share, float):
        evidence = (_of_goodput(summary, share, early),)
    else:
        evidence = tuple(
            _of_objective(summary, result, ours["slo_batches"], early) for result in ours["slo"]
        )
    return TrialResult(
        evidence=evidence,
        verdict=f"{verdict}: {cause}" if cause else verdict,
        is_client_bound=cause == "client-bound",
        problem=problem,
        # What was measured of a load that ended early is not what that load does.
        statistics={} if early else statistics_of(summary, search.maximize),
    )


def _without_data(summary: Mapping[str, Any]) -> str:
    """Return which metric of an objective no response had; empty if every one has data, or there
    was no response."""
    if not summary.get("request_count", {}).get("avg"):
        return ""
    tags = dict.fromkeys(str(result["metric"]) for result in summary["aiperf_svc"]["slo"])
    names = [CATALOG[tag].name for tag in tags if tag in CATALOG and tag not in summary]
    return f"{' and '.join(names)}: no response had it; search by another metric" if names else ""


def failed_trial(reason: str) -> TrialResult:
    """Return the result of a trial that ended without a summary."""
    return TrialResult(evidence=(), verdict="failed", problem=reason or "the trial failed")


def statistics_of(summary: Mapping[str, Any], maximized: str | None) -> dict[str, float]:
    """Return the statistics of a trial that a search shows, and the one that it maximizes."""
    found: dict[str, float] = {}
    for name in dict.fromkeys((*([f"{maximized}:avg"] if maximized else []), *CURVE)):
        tag, _, stat = name.partition(":")
        value = summary.get(tag, {}).get(stat)
        if value is not None:
            found[tag if stat == "avg" else name] = float(value)
    return found


def _of_objective(
    summary: Mapping[str, Any],
    result: Mapping[str, Any],
    batches: Sequence[Mapping[str, Any]],
    early: str,
) -> Evidence:
    metric, stat, bound = result["metric"], result["stat"], result["bound"]
    measured, limit = result["measured"], result["limit"]
    is_thin = stat in summary.get(metric, {}).get("unreliable", ())
    is_within = measured is not None and (
        measured <= limit if bound == "max" else measured >= limit
    )
    # A miss for another reason than the values, such as failed requests, needs no number of them.
    is_other_miss = result["judged"] and not result["ok"] and (is_within or measured is None)
    found = next(
        (each for each in batches if [each[k] for k in _KEY] == [result[k] for k in _KEY]), None
    )
    # What misses its objective for another reason than its values misses it whatever they are.
    has_batches = found is not None and (result["ok"] or not is_within) and not is_thin
    is_met = None if is_thin and not is_other_miss else bool(result["ok"])
    name = f"{stat} {CATALOG[metric].name if metric in CATALOG else metric}"
    text = f"{name}: {result['reason']}" if is_other_miss else ""
    if early:
        # Only of objectives that break, and nobody knows of the others.
        has_batches, is_met = found is not None, None if found is None else False
    allowed = allowed_share(stat, bound)
    return Evidence(
        name=name,
        bound=bound,
        limit=limit,
        measured=measured,
        unit=result["unit"],
        is_met=is_met,
        counts=tuple(found["counts"]) if has_batches and found else (),
        totals=tuple(found["totals"]) if has_batches and found else (),
        allowed=limit if allowed is None else allowed,
        is_share=allowed is not None,
        text=f"ended early: {early}" if early else text,
    )


_KEY = ("metric", "stat", "bound", "limit")


def _of_goodput(summary: Mapping[str, Any], share: float, early: str) -> Evidence:
    found = next((b for b in summary["aiperf_svc"]["slo_batches"] if b["metric"] == GOODPUT), None)
    counts = tuple(found["counts"]) if found else ()
    totals = tuple(found["totals"]) if found else ()
    good = 1 - sum(totals) / sum(counts) if counts else None
    return Evidence(
        name="share of good requests",
        bound="min",
        limit=share * 100,
        measured=None if good is None else good * 100,
        unit="%",
        is_met=None if good is None else good >= share,
        counts=counts,
        totals=totals,
        allowed=round(1 - share, 12),
        text=f"ended early: {early}" if early else "",
    )
