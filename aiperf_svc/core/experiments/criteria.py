"""Converts `holds:` of a search into an SLO of its trials, and evaluates a trial by it."""

from aiperf_svc.config.search import Limit, Search
from aiperf_svc.config.slo import Objective, Slo
from aiperf_svc.core.experiments.evidence import Evidence
from aiperf_svc.core.experiments.search import SearchedTrial
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.objective_batches import allowed_share
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.results.slo import check_slo, unknown_metric
from aiperf_svc.core.results.slo_results import GOODPUT, ObjectiveResult
from aiperf_svc.core.verdict.check_result import ENDED_EARLY, TARGET_FAILING, Severity
from aiperf_svc.domain.metric_catalog import CATALOG

CURVE = (
    "request_throughput:avg",
    "time_to_first_token:p99",
    "inter_token_latency:p99",
    "request_latency:p99",
    "output_token_throughput:avg",
)
"""Statistics that a search shows for each point, if a trial has them. A narrow terminal shows only
the first ones."""


def searched_slo(search: Search, slo: Slo) -> Slo:
    """Return the SLO of a search's trials. Raises ValueError with the problem and what was
    expected."""
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
        problem = f"{holds.stat!r} is not a statistic"
        raise ValueError(f"{search.holds!r}: {problem}; {expected}") from None
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


def trial_result(found: InferenceResult, search: Search) -> SearchedTrial:
    """Return the data about a trial's results that a search needs."""
    share = search.condition()
    problem = ""
    if found.verdict is Severity.INVALID and found.cause not in (TARGET_FAILING, ENDED_EARLY):
        problem = _first_reason(found)
    problem = problem or _without_data(found)
    evidence: tuple[Evidence, ...] = ()
    if isinstance(share, float):
        evidence = (_goodput_evidence(found, share),)
    else:
        evidence = tuple(_objective_evidence(found, objective) for objective in found.slo)
    return SearchedTrial(
        evidence=evidence,
        verdict=f"{found.verdict}: {found.cause}" if found.cause else str(found.verdict),
        is_client_bound=found.cause == "client-bound",
        problem=problem,
        # Measurements of a load that ended early do not describe the whole load.
        statistics={} if found.early_end else statistics_of(found, search.maximize),
    )


def _first_reason(found: InferenceResult) -> str:
    return found.reasons[0].text if found.reasons else found.cause


def searched_trial(found: RunResult | None, search: Search | None) -> SearchedTrial | None:
    """Return the data about a trial that a search needs; None without a search or results."""
    if search is None or not isinstance(found, InferenceResult):
        return None
    return trial_result(found, search)


def _without_data(found: InferenceResult) -> str:
    """Return which objective's metric was absent from all responses. Empty if every metric has data
    or there was no response."""
    if not found.has_succeeded:
        return ""
    tags = dict.fromkeys(objective.metric for objective in found.slo)
    names = [CATALOG[tag].name for tag in tags if tag in CATALOG and tag not in found.metrics]
    return f"{' and '.join(names)}: no response had it; search by another metric" if names else ""


def failed_trial(reason: str) -> SearchedTrial:
    """Return the result of a trial that ended without a summary."""
    return SearchedTrial(evidence=(), verdict="failed", problem=reason or "the trial failed")


def statistics_of(found: InferenceResult, maximized: str | None) -> dict[str, float]:
    """Return a trial's statistics that a search shows, plus the one that it maximizes."""
    values: dict[str, float] = {}
    for name in dict.fromkeys((*([f"{maximized}:avg"] if maximized else []), *CURVE)):
        tag, _, stat = name.partition(":")
        value = found.value(tag, stat)
        if value is not None:
            values[tag if stat == "avg" else name] = float(value)
    return values


def _objective_evidence(found: InferenceResult, result: ObjectiveResult) -> Evidence:
    metric, stat, bound = result.metric, result.stat, result.bound
    measured, limit = result.measured, result.limit
    is_thin = metric in found.metrics and found.metrics[metric].is_unreliable(stat)
    is_within = measured is not None and (
        measured <= limit if bound == "max" else measured >= limit
    )
    # A miss for another reason than the values, such as failed requests, needs no number.
    is_other_miss = result.judged and not result.ok and (is_within or measured is None)
    key = (metric, stat, bound, limit)
    batches = next(
        (b for b in found.slo_batches if (b.metric, b.stat, b.bound, b.limit) == key), None
    )
    # Such a miss is certain, whatever the values are.
    has_batches = batches is not None and (result.ok or not is_within) and not is_thin
    is_met = None if not result.judged or (is_thin and not is_other_miss) else result.ok
    name = f"{stat} {CATALOG[metric].name if metric in CATALOG else metric}"
    is_unknown = measured is None and not is_thin
    text = f"{name}: {result.reason}" if result.reason and (is_other_miss or is_unknown) else ""
    is_rate_met = result.ok and bound == "min"
    if found.cause == TARGET_FAILING and (is_met is None or is_rate_met):
        # A rate excludes failed requests, and may be high enough without them.
        has_batches, is_met, text = False, False, f"{name}: {_first_reason(found)}"
    if found.early_end:
        # Only missed objectives are known.
        has_batches, is_met = batches is not None, None if batches is None else False
        is_unknown = False
        text = f"ended early: {found.early_end}"
    allowed = allowed_share(stat, bound)
    return Evidence(
        name=name,
        bound=bound,
        limit=limit,
        measured=measured,
        unit=result.unit,
        is_met=is_met,
        is_unknown=is_unknown,
        counts=batches.counts if has_batches and batches else (),
        totals=batches.totals if has_batches and batches else (),
        allowed=limit if allowed is None else allowed,
        is_share=allowed is not None,
        text=text,
    )


def _goodput_evidence(found: InferenceResult, share: float) -> Evidence:
    batches = next((each for each in found.slo_batches if each.metric == GOODPUT), None)
    counts = batches.counts if batches else ()
    totals = batches.totals if batches else ()
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
        text=f"ended early: {found.early_end}" if found.early_end else "",
    )
