"""A finished run as a point of a curve, reduced to the numbers that the rules need."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.paths import value_at
from aiperf_svc.config.units import parse_duration_ns
from aiperf_svc.core.compare.measured_run import flatten
from aiperf_svc.core.experiments.scenario_result import Series
from aiperf_svc.core.results.inference_result import DatasetView, InferenceResult, LoadView
from aiperf_svc.core.results.provenance import UNKNOWN, Provenance
from aiperf_svc.core.rules.report import PointOutcome, Requirement, of_points, outcome_of
from aiperf_svc.core.rules.steady_state import Requests, Window, find_window
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain import metric_formulas as formulas
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Outcome

Found = tuple[bool | None, str]
"""Whether a point meets a requirement (None: cannot be checked), and the finding."""
NO_RECORDS: Final[Found] = (None, "no data on individual requests: no records.parquet")
_COMMON = ("endpoint", "dataset", "tokenizer", "deployment.target")
"""Parts of the config that must be equal at all points of a curve."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and latencies over a subset of a run's requests; None: not measured."""

    system_tps: float | None = None
    """Output tokens per second of all users."""
    turn_tps: float | None = None
    """Output tokens over the time of all requests."""
    ttft_p90_ms: float | None = None
    tpot_p90_ms: float | None = None
    ttft_p90_bound_ms: float | None = None
    """The early-stopping estimate: with 99% confidence the percentile does not exceed it."""
    tpot_p90_bound_ms: float | None = None


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Data from the single requests of a run."""

    repeats: int
    """Single requests, or conversations, that repeated an entry of the dataset sent
    earlier."""
    span_s: float
    """Time from the first to the last start."""
    rates: Rates
    completed: Rates = Rates()
    """The same over completed requests only."""
    window: Window
    window_span_s: float
    steady: Rates


class MeasuredPoint(msgspec.Struct, frozen=True):
    """A finished run at a fixed concurrency."""

    folder: str
    result: InferenceResult
    sent: Sent | None
    """None if single requests were not kept."""
    provenance: Provenance | None = None

    @property
    def load(self) -> LoadView:
        return self.result.config_view.load

    @property
    def dataset(self) -> DatasetView:
        return self.result.config_view.dataset

    @property
    def concurrency(self) -> int:
        """Number of users; 0 for a load that is not a closed loop."""
        return (self.load.concurrency or 0) if self.load.is_closed else 0

    @property
    def issued(self) -> int:
        """Number of issued requests."""
        return self.result.accounts.issued

    @property
    def entries(self) -> int:
        """Number of the dataset's prompts, without those of the warmup; 0: unknown."""
        built = self.result.topology.dataset
        return built.entries - built.warmup_entries if built else 0

    @property
    def stack(self) -> dict[str, str]:
        """Known facts about hardware and software, by dotted name."""
        found = self.provenance.compared if self.provenance is not None else {}
        return {name: value for name, value in found.items() if value != UNKNOWN}

    @property
    def has_warmup(self) -> bool:
        """True if requests were sent before the measurement."""
        return bool(self.load.warmup) or self._configured("load", "agentic") is not None

    @property
    def warmup_s(self) -> float | None:
        """Maximum time of the warmup in the config; None without a limit."""
        limit = self._configured("load", "warmup", "duration")
        limit = limit or self._configured("load", "agentic", "warmup_grace")
        return parse_duration_ns(limit) / 1e9 if limit else None

    @property
    def load_s(self) -> float | None:
        """Time in which requests were sent, without the following drain; None: unknown."""
        planned, measured = self._configured("load", "duration"), "benchmark_duration"
        length_s = self.result.value(measured)
        if planned and length_s and not self._configured("load", "requests"):
            return min(length_s, parse_duration_ns(planned) / 1e9)
        return self.sent.span_s if self.sent is not None else None

    def _configured(self, *path: str) -> Any:
        return value_at(self.result.config, path)

    @property
    def has_conversations(self) -> bool:
        """True if requests were turns of conversations."""
        built = self.result.topology.dataset
        return built is not None and built.turns > built.entries

    @property
    def is_offline(self) -> bool:
        """True if all requests were sent at once."""
        return 0 < self.issued <= self.concurrency

    @property
    def facts(self) -> dict[str, str]:
        """Facts that must be equal at all points of a curve, by dotted key."""
        config = flatten(self.result.config)
        own = "dataset.variant"
        facts = {k: v for k, v in config.items() if k.startswith(_COMMON) and k != own}
        built = self.result.topology.dataset
        facts["version"] = self.result.version
        facts["dataset checksum"] = (built and (built.source_sha256 or built.sha256)) or "none"
        return facts

    @property
    def whole(self) -> Rates:
        """Rates over the whole run."""
        if self.sent is not None:
            return self.sent.rates
        return Rates(
            system_tps=self.result.value("output_token_throughput"),
            ttft_p90_ms=self.result.value("time_to_first_token", "p90"),
            tpot_p90_ms=self.result.value("inter_token_latency", "p90"),
        )


def of_check(
    rule: str,
    section: str,
    check: Callable[[MeasuredPoint], Found],
    points: Iterable[MeasuredPoint],
) -> Requirement:
    """Return a requirement for each of these points."""
    found = ((each.concurrency, *check(each)) for each in points)
    return of_points(
        rule, section, (PointOutcome(users, outcome_of(met), text) for users, met, text in found)
    )


def valid_verdict(point: MeasuredPoint) -> Found:
    """Return whether the results of a run are not invalid."""
    verdict, cause = point.result.verdict, point.result.cause
    return verdict is not Severity.INVALID, f"{verdict}: {cause}" if cause else str(verdict)


def sent_requests(columns: Columns, *, pass_size: int, min_s: float) -> Sent:
    """Evaluate the records of a run. A super-pass has `pass_size` requests, and the window of the
    steady state spans at least `min_s`. Starts are by the workers' clocks, whose differences are
    much smaller than a super-pass."""
    requests, repeats, has_failed, end_ns = _requests(columns)
    window = find_window(requests, pass_size, min_s)
    inside = requests.part(window.begin, window.end)
    of_inside = has_failed[window.begin : window.end]
    run_s = (end_ns - int(requests.start_ns[0])) / 1e9 if len(requests.start_ns) else 0.0
    return Sent(
        repeats=repeats,
        span_s=requests.issue_span_s,
        rates=_rates(requests, has_failed, run_s),
        completed=_rates(requests, np.zeros_like(has_failed), run_s),
        window=window,
        window_span_s=inside.issue_span_s,
        steady=_rates(inside, of_inside, inside.issue_span_s) if window.length else Rates(),
    )


def _requests(columns: Columns) -> tuple[Requests, int, NDArray[np.bool_], int]:
    """Return the requests in the order of their starts, the number of credits that repeated an
    entry, which requests failed, and the end of the last response."""
    parts: list[list[NDArray[Any]]] = []
    end_ns = 0
    for chunk in PhaseRows(columns).chunks(Population.SENT):
        is_done = chunk["outcome"] == Outcome.COMPLETED
        end_ns = max(end_ns, int(chunk["end_wall_ns"].max()))
        values = [
            formula(chunk)
            for formula in (
                formulas.time_to_first_token,
                formulas.inter_token_latency,
                formulas.request_latency,
                formulas.count_of("output_tokens"),
            )
        ]
        for value in values:
            value[~is_done] = np.nan
        credits = chunk["index"], chunk["entry"]
        parts.append([chunk["start_wall_ns"], *values, *credits, ~is_done])
    if not parts:
        nothing = np.empty(0)
        empty = np.empty(0, np.int64)
        requests = Requests(empty, nothing, nothing, nothing, nothing)
        return requests, 0, np.empty(0, bool), 0
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    *ordered, indexes, entries, has_failed = (column[order] for column in joined)
    # All turns of a conversation have the same credit.
    repeats = len(np.unique(indexes)) - len(np.unique(entries))
    return Requests(*ordered), repeats, has_failed, end_ns


def _rates(requests: Requests, has_failed: NDArray[np.bool_], seconds: float) -> Rates:
    """Return the rates over these requests. A failed request has an infinite latency."""
    ttft, tpot = (
        Series.of(np.where(has_failed, np.inf, values))
        for values in (requests.ttft_ms, requests.tpot_ms)
    )
    is_known = ~np.isnan(requests.output_tokens)
    tokens = float(requests.output_tokens[is_known].sum())
    turns_s = float(np.nansum(requests.latency_ms[is_known])) / 1e3
    return Rates(
        system_tps=tokens / seconds if seconds and is_known.any() else None,
        turn_tps=tokens / turns_s if turns_s else None,
        ttft_p90_ms=ttft.percentile(90),
        tpot_p90_ms=tpot.percentile(90),
        ttft_p90_bound_ms=ttft.estimate(90),
        tpot_p90_bound_ms=tpot.estimate(90),
    )
