"""The results of a benchmark of an inference server."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.core.events.report import Disturbance
from aiperf_svc.core.quality.gate import QualityResult
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.cache_stats import CacheUse, cache_tables, percent
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.run_result import INFERENCE, MetricStats, RunResult, numbers_of
from aiperf_svc.core.results.slo_results import ObjectiveBatches, TierResult, tier_tables
from aiperf_svc.core.scaling.report import ScalingResult, scaling_tables
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.core.verdict.health_log import Health
from aiperf_svc.domain.metric_catalog import CATALOG, Kind
from aiperf_svc.domain.number_text import number
from aiperf_svc.domain.shown_table import ShownTable
from aiperf_svc.protocol.messages.reports import (
    AddressUse,
    DatasetReport,
    ForcedLengthReport,
    HookCall,
    TokenStatistics,
)

_HEADLINE = (
    ("request_throughput", "avg"),
    ("output_token_throughput", "avg"),
    ("time_to_first_token", "p99"),
    ("inter_token_latency", "p99"),
    ("request_latency", "p99"),
    ("time_to_first_token", "p50"),
    ("inter_token_latency", "p50"),
    ("request_latency", "p50"),
    ("goodput", "avg"),
    ("request_error_rate", "avg"),
    ("quality_score", "avg"),
)
_DIRECTIONS: dict[str, Literal["higher", "lower", ""]] = {
    "higher": "higher",
    "lower": "lower",
    "": "",
}
CATALOG_INFOS = {
    tag: MetricInfo(
        tag=tag, name=metric.name, unit=metric.shown_unit, better=_DIRECTIONS[metric.better]
    )
    for tag, metric in CATALOG.items()
}
"""Descriptions of the catalog's metrics."""


STEADY = "steady_state."
"""Prefix of a metric's tag for the steady part of a run."""


def steady_info(tag: str) -> MetricInfo:
    """Return the description of a catalog metric for the steady part of a run."""
    info = CATALOG_INFOS[tag]
    return msgspec.structs.replace(info, tag=f"{STEADY}{tag}", name=f"{info.name}, steady state")


_ADDED_TURNS = (DatasetKind.SYNTHETIC, DatasetKind.MULTI_TURN, DatasetKind.SHAREGPT)
"""Kinds of datasets whose later turns only contain what they add to a conversation."""


# Messages are arrays on the wire. In results, the same values are objects with named members.
class AddressFacts(AddressUse, frozen=True, array_like=False):
    """Use of one address of the target."""


class Hook(HookCall, frozen=True, array_like=False):
    """A request to the server before or after a phase."""


class TokenFacts(TokenStatistics, frozen=True, array_like=False):
    """Token counts of a dataset's turns."""


class ForcedLength(ForcedLengthReport, frozen=True, array_like=False):
    """The target's response to a request that forces its output length."""


class DatasetFacts(DatasetReport, frozen=True, array_like=False):
    input_tokens: TokenFacts | None
    output_tokens: TokenFacts | None
    forced_output_length: ForcedLength | None = None

    @classmethod
    def of(cls, report: DatasetReport) -> "DatasetFacts":
        """Return the dataset manager's report with named members."""
        found = msgspec.structs.asdict(report)
        for name, kind in (
            ("input_tokens", TokenFacts),
            ("output_tokens", TokenFacts),
            ("forced_output_length", ForcedLength),
        ):
            if found[name] is not None:
                found[name] = kind(**msgspec.structs.asdict(found[name]))
        return cls(**found)


class RunLayout(msgspec.Struct, frozen=True, kw_only=True):
    layout: str = ""
    workers: int = 0
    record_processors: int = 0
    raw_route: str = ""
    dataset: DatasetFacts | None = None
    """None if no dataset was built."""


class ErrorDetails(msgspec.Struct, frozen=True):
    """One kind of error."""

    code: int | None
    """Status of the response; None if there was no response."""
    type: str
    message: str
    """The first message of this kind."""


class ErrorCount(msgspec.Struct, frozen=True):
    """Number of times that an error occurred."""

    error_details: ErrorDetails
    count: int


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one of several targets or models."""

    name: str
    """URL or model."""
    metrics: dict[str, MetricStats]


class SteadyStats(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the steady part of a run, by the rule of its config."""

    rule: str
    begin_s: float
    """Its begin and end, from the start of the load."""
    end_s: float
    metrics: dict[str, MetricStats]
    """Metrics of the requests started in it, with rates over its length; empty if there is none."""


class TurnOverflow(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of one turn of conversations, or request of session trees, that were too long."""

    turn: int
    """From 0."""
    requests: int
    """Sent requests of this turn."""
    overflows: int


class TlsView(msgspec.Struct, frozen=True):
    """Members of `endpoint.tls` for tables."""

    verify: bool = True


class EndpointView(msgspec.Struct, frozen=True):
    """Members of the config's `endpoint` for tables."""

    url: str = ""
    urls: tuple[str, ...] = ()
    model: str | None = None
    models: tuple[str, ...] = ()
    type: str = ""
    streaming: bool = False
    proxy: str | None = None
    use_server_token_count: bool = False
    force_output_length: bool = False
    tls: TlsView = TlsView()


class TokenizerView(msgspec.Struct, frozen=True):
    """Members of the config's `tokenizer` for tables."""

    name: str | None = None


class LoadView(msgspec.Struct, frozen=True):
    """Members of the config's `load` for rules and reports. A schedule has the type of its kind."""

    concurrency: int | None = None
    request_rate: Any = None
    stages: Any = None
    rate_series: Any = None
    bursts: Any = None
    user_centric: Any = None
    fixed_schedule: Any = None
    ramp: Any = None
    prefill_concurrency: Any = None
    cancellation: Any = None
    warmup: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether users send the next request after the last response."""
        schedules = (self.stages, self.rate_series, self.bursts, self.user_centric)
        return not any((*schedules, self.fixed_schedule, self.request_rate))


class DatasetView(msgspec.Struct, frozen=True):
    """Members of the config's `dataset` for rules and reports. Lengths are a distribution."""

    kind: str = ""
    order: str | None = None
    cache_bust: str = "none"
    cache_bust_per: str = ""
    input_tokens: Any = None
    output_tokens: Any = None


class TargetView(msgspec.Struct, frozen=True):
    """Members of the config's `deployment.target` for totals of several runs."""

    kind: str = "none"


class DeploymentView(msgspec.Struct, frozen=True):
    """Members of the config's `deployment`."""

    target: TargetView = TargetView()


class ConfigView(msgspec.Struct, frozen=True):
    """Members of the config for tables, rules and reports."""

    endpoint: EndpointView = EndpointView()
    load: LoadView = LoadView()
    dataset: DatasetView = DatasetView()
    tokenizer: TokenizerView = TokenizerView()
    deployment: DeploymentView = DeploymentView()


class InferenceResult(RunResult, frozen=True, kw_only=True):
    workload: str = INFERENCE
    metrics: dict[str, MetricStats]
    """By tag, in the order of the catalog."""
    reasons: tuple[Reason, ...] = ()
    """The checks that did not pass, worst first."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, without effect on the verdict."""
    goodput_tiers: tuple[TierResult, ...] = ()
    slo_batches: tuple[ObjectiveBatches, ...] = ()
    early_end: str = ""
    """Why a search ended the load early; empty if it did not."""
    is_complete: bool = True
    errors: tuple[ErrorCount, ...] = ()
    """The most frequent ones first."""
    accounts: Accounts = Accounts()
    finish_reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of requests that ended with each `FinishReason`, by its name in lower case."""
    lost_services: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()
    topology: RunLayout = RunLayout()
    target_addresses: tuple[AddressFacts, ...] = ()
    hooks: tuple[Hook, ...] = ()
    scaling: ScalingResult | None = None
    """How the server's replicas followed the load, if the run watched them."""
    events: tuple[Disturbance, ...] = ()
    """Effects of each event of the config on the load."""
    targets: tuple[GroupStats, ...] = ()
    """Results of each target, if there are several."""
    models: tuple[GroupStats, ...] = ()
    """Results of each model, if there are several."""
    quality: QualityResult | None = None
    """None without a quality gate."""
    steady_state: SteadyStats | None = None
    """None without a rule in the config."""
    cache: CacheUse | None = None
    """Cached tokens by turn and by conversation, if known."""
    context_overflows: tuple[TurnOverflow, ...] = ()
    """The turns at which prompts were too long for the server, if there are several turns."""
    system: SystemReport | None = None
    """Telemetry of the system under test; None without a source."""
    aiperf_config: msgspec.Raw = msgspec.Raw(b"{}")
    """The config with AIPerf's names, as JSON. Only the file uses it."""

    def value(self, tag: str, stat: str = "avg") -> float | None:
        """Return a statistic of a metric; None without a value."""
        found = self.metrics.get(tag)
        return None if found is None else found.stat(stat)

    @property
    def config_view(self) -> ConfigView:
        """The keys of the config that tables, rules and reports read."""
        return msgspec.convert(self.config, ConfigView)

    @property
    def missed_quality(self) -> str:
        return self.quality.problem if self.quality is not None else ""

    @property
    def token_source(self) -> str:
        if not {"input_sequence_length", "output_sequence_length"} & self.metrics.keys():
            return ""
        config = self.config_view
        if not config.tokenizer.name or config.endpoint.use_server_token_count:
            return "Tokens: counted by the server (usage)"
        text = f"Tokens: counted by the tokenizer {config.tokenizer.name}"
        built = self.topology.dataset
        if built is not None and built.turns > built.entries and built.kind in _ADDED_TURNS:
            text += ", of later turns without their history"
        if {"usage_prompt_tokens", "usage_completion_tokens"} & self.metrics.keys():
            text += "; --use-server-token-count uses the server's counts"
        return text

    @property
    def system_reasons(self) -> tuple[Reason, ...]:
        return self.system.reasons if self.system is not None else ()

    @property
    def has_succeeded(self) -> bool:
        """True if a request completed."""
        return bool(self.value("request_count"))

    @property
    def first_failure(self) -> str:
        most_frequent = max(self.errors, key=lambda each: each.count, default=None)
        if most_frequent is None:
            return ""
        return f"no request completed: {most_frequent.error_details.message}".removesuffix(": ")

    @property
    def stats(self) -> dict[str, MetricStats]:
        return self.metrics

    @property
    def infos(self) -> dict[str, MetricInfo]:
        found = {tag: CATALOG_INFOS[tag] for tag in self.metrics}
        if self.steady_state is not None:
            found |= {f"{STEADY}{tag}": steady_info(tag) for tag in self.steady_state.metrics}
        return found

    def numbers(self) -> Iterator[tuple[str, str, float]]:
        yield from super().numbers()
        if self.steady_state is not None:
            for tag, stat, value in numbers_of(self.steady_state.metrics):
                yield f"{STEADY}{tag}", stat, value

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """Values of the whole run, each followed by its value in the steady part, if any."""
        found = []
        for tag, stat in self.whole_headline:
            found.append((tag, stat))
            part = None if self.steady_state is None else self.steady_state.metrics.get(tag)
            if part is not None and part.stat(stat) is not None:
                found.append((f"{STEADY}{tag}", stat))
        return tuple(found)

    @property
    def whole_headline(self) -> tuple[tuple[str, str], ...]:
        """The headline values of the whole run."""
        return tuple(each for each in _HEADLINE if self.value(*each) is not None)

    @property
    def shown_tables(self) -> list[ShownTable]:
        """Tables that only some runs have."""
        return [
            *tier_tables(self.goodput_tiers),
            *_steady_tables(self),
            *scaling_tables(self.scaling),
            *cache_tables(self.cache),
            *_overflow_tables(self.context_overflows),
            *_address_tables(self.target_addresses),
        ]


def _overflow_tables(turns: Sequence[TurnOverflow]) -> list[ShownTable]:
    """Return the turns at which prompts were too long for the server."""
    rows = []
    for each in turns:
        counts = (each.turn + 1, each.requests, each.overflows)
        rows.append([*map(number, counts), percent(each.overflows / each.requests)])
    columns = ("turn", "requests", "overflows", "share")
    return [ShownTable("Context overflows by turn", columns, rows, texts=())]


def _address_tables(uses: Sequence[AddressFacts]) -> list[ShownTable]:
    """Return the use of each address of the target, if there are several."""
    if len(uses) < 2:
        return []
    rows = [
        (each.address, *map(number, (each.requests, each.connections, each.failures)), each.error)
        for each in uses
    ]
    alerts = [f"{each.address} was down at the end" for each in uses if each.is_down]
    columns = ("address", "requests", "connections", "failures", "last failure")
    return [ShownTable("Target addresses", columns, rows, alerts=alerts, texts=(0, 4))]


def _steady_tables(result: InferenceResult) -> list[ShownTable]:
    """Return the headline of the steady part next to that of the whole run; empty without a
    rule."""
    steady = result.steady_state
    if steady is None:
        return []
    rows = []
    for tag, stat in result.whole_headline:
        metric, measured = CATALOG[tag], steady.metrics.get(tag)
        if metric.kind is Kind.SCALAR and steady.metrics and measured is None:
            continue
        name = f"{metric.name} {stat}" if metric.kind is Kind.RECORD else metric.name
        within = measured.stat(stat) if measured else None
        rows.append((name, number(within), number(result.value(tag, stat)), metric.unit))
    title = f"Steady state: {steady.begin_s:.1f} s to {steady.end_s:.1f} s, {steady.rule}"
    columns = ("metric", "steady state", "whole run", "unit")
    alerts = () if steady.metrics else ("no request was started in the steady state",)
    return [ShownTable(title, columns, rows, alerts=alerts, texts=(0, 3))]
