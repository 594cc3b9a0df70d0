"""The configuration that a user writes: one frozen BenchmarkConfig for a laptop or a cluster.

All defaults are defined here. Unknown keys are refused. Durations are nanoseconds
and sizes bytes once they are in the model (`units`). Checks that span several keys are at the
bottom of the model that owns the keys.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.base import SECOND_NS, Model
from aiperf_svc.config.deployment import RANK_POD, Deployment
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.prompts import (
    Images,
    Length,
    Passages,
    Prefix,
    Shape,
    Sounds,
    Turns,
)
from aiperf_svc.config.ranks import Ranks
from aiperf_svc.config.several_targets import NamedTarget, problem_of
from aiperf_svc.config.telemetry import Telemetry
from aiperf_svc.config.units import (
    DurationNs,
    PositiveDurationNs,
    Share,
    SizeBytes,
    format_duration,
)


class EndpointType(StrEnum):
    """The HTTP API that the target speaks."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    HUGGINGFACE_GENERATE = "huggingface_generate"
    COHERE_RANKINGS = "cohere_rankings"
    HF_TEI_RANKINGS = "hf_tei_rankings"
    NIM_RANKINGS = "nim_rankings"
    TEMPLATE = "template"
    RAW = "raw"


RANKINGS = (EndpointType.COHERE_RANKINGS, EndpointType.HF_TEI_RANKINGS, EndpointType.NIM_RANKINGS)
"""APIs that rank passages by a query."""
CUSTOM = (EndpointType.TEMPLATE, EndpointType.RAW)
"""Any JSON API, described by the config."""
BATCHES = (EndpointType.EMBEDDINGS, EndpointType.COMPLETIONS)
"""APIs that take several texts in a request."""
MESSAGE_APIS = (EndpointType.CHAT, EndpointType.RESPONSES, EndpointType.MESSAGES)
"""APIs whose prompts are messages with roles."""
WITHOUT_STREAMS = (EndpointType.EMBEDDINGS, *RANKINGS)


class Tls(Model):
    """Settings for the check of the target's certificate, for an https URL."""

    verify: bool = True
    """False accepts any certificate; the run and its results print a warning."""
    ca_file: str | None = None
    """PEM file of the authorities to trust instead of the system's."""
    ca: Annotated[str, Field(pattern=r"-----BEGIN CERTIFICATE-----")] | None = None
    """The same authorities as text, for pods of a cluster, which do not have the file."""
    server_name: str | None = None
    """Name to check the certificate against, when it is not the URL's host."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.ca and self.ca_file:
            raise ValueError("{ca} and {ca_file} both say whom to trust; give one of them")
        return self


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][!#$%&'*+.^_`|~0-9A-Za-z-]*$")]
HeaderValue = Annotated[str, Field(pattern=r"^[\t -~\x{a0}-\x{ff}]*$")]
"""A header value without line breaks, since a line break would begin another header."""


class Endpoint(Model):
    """The target and how a request to it is made."""

    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+.*$")]
    """Base URL; a path in it goes before the endpoint's own path (`/v1/chat/completions`)."""
    urls: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+.*$")], ...] = ()
    """Further base URLs. Requests go to `url` and to these in turn."""
    type: EndpointType = EndpointType.CHAT
    model: Annotated[str, Field(min_length=1)]
    streaming: bool = False
    path: Annotated[str, Field(pattern=r"^/[!-~]*$")] | None = None
    """Replaces the endpoint's own path. Types `template` and `raw` have none."""
    template: Annotated[str, Field(min_length=1)] | None = None
    """Jinja2 template of a request's JSON body, for type `template`. Its variables are `text`,
    `texts`, `query`, `passages`, `messages`, `model`, `max_tokens`, `stream` and `role`."""
    response_field: Annotated[str, Field(min_length=1)] | None = None
    """JMESPath query of the output in a response, or in an event of a stream, for types `template`
    and `raw`. Without one, the usual places are tried."""
    output_tokens_field: Annotated[str, Field(min_length=1)] | None = None
    """JMESPath query of the number of output tokens, for the same types."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Headers of every request. Do not put secrets here: use `api_key_env`."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the target's API key."""
    api_key_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] | None = None
    """Header that carries the key: a bearer token in `Authorization`, the plain key in any other.
    Without it, the API's own: `x-api-key` of the messages API, `Authorization` of all others."""
    extra_inputs: dict[str, object] = Field(default_factory=dict)
    """Keys that are merged into the JSON body of every request."""
    request_timeout: PositiveDurationNs = 600 * SECOND_NS
    connect_timeout: PositiveDurationNs = 30 * SECOND_NS
    wait_for_server: DurationNs = 0
    """Longest time to wait, before the load, for a server that is still loading its model."""
    connections: Literal["keep-alive", "per-request"] = "keep-alive"
    request_usage: bool = True
    """Ask a streaming server for token usage (`stream_options.include_usage`)."""
    force_output_length: bool = True
    """With an output length in the dataset, also send `ignore_eos` and `min_tokens`, unless a probe
    before the load shows that the server refuses them."""
    tls: Tls = Tls()
    source_addresses: tuple[str, ...] = ()
    """Local addresses to connect from, in turn; one address reaches about 28,000 connections."""

    @property
    def all_urls(self) -> tuple[str, ...]:
        """All base URLs."""
        return (self.url, *self.urls)

    @model_validator(mode="after")
    def _describes_its_api(self) -> Self:
        if len(set(self.all_urls)) < len(self.all_urls):
            raise ValueError("{urls}: one of the addresses is given twice; name each once")
        if self.type is EndpointType.TEMPLATE and self.template is None:
            raise ValueError("{type} template needs {template}, the body of a request")
        if self.type is not EndpointType.TEMPLATE and self.template is not None:
            raise ValueError(f"{{template}} needs {{type}} template, not {self.type}")
        for name in ("response_field", "output_tokens_field"):
            if getattr(self, name) is not None and self.type not in CUSTOM:
                raise ValueError(f"{{{name}}} needs {{type}} template or raw, not {self.type}")
        if self.type is EndpointType.RAW and self.extra_inputs:
            raise ValueError("{type} raw sends payloads as they are; leave out {extra_inputs}")
        return self


class Arrival(Model):
    """The spacing of requests in open loop."""

    pattern: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: Annotated[float, Field(gt=0)] = 1.0
    """Shape of the gamma distribution: 1 is Poisson, below 1 burstier, above 1 more regular."""

    @model_validator(mode="after")
    def _burstiness_belongs_to_gamma(self) -> Self:
        if self.burstiness != 1.0 and self.pattern != "gamma":
            raise ValueError(
                f"{{burstiness}} {self.burstiness:g} needs {{pattern}} gamma, not {self.pattern}"
            )
        return self


class Warmup(Model):
    """Requests sent before the measurement and left out of the results."""

    requests: Annotated[int, Field(gt=0)] | None = None
    duration: PositiveDurationNs | None = None
    grace_period: DurationNs = 30 * SECOND_NS

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.requests is None and not self.duration:
            raise ValueError("a warmup needs {requests} or {duration}")
        return self


class Stage(Model):
    """A time with one rate."""

    rate: Annotated[float, Field(ge=0)]
    duration: PositiveDurationNs


class RatePoint(Model):
    """A point of a rate that changes."""

    at: DurationNs
    rate: Annotated[float, Field(ge=0)]


class Load(Model):
    """The amount of load and its duration.

    Closed loop: `concurrency` users, each sending its next request when the response to the last
    one has ended. Open loop: `request_rate` requests a second whatever the server does, or with
    `fixed_schedule` each request at the time of its row in a trace; at most `concurrency` at a
    time when that is given too.
    """

    concurrency: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    request_rate: Annotated[float, Field(gt=0)] | None = None
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)] | None = None
    """Open loop: one rate after the other. The load ends with the last stage."""
    rate_series: Annotated[tuple[RatePoint, ...], Field(min_length=2)] | None = None
    """Open loop: a rate that changes linearly from point to point; two points at one time are a
    jump. The load ends with the last point."""
    arrival: Arrival = Arrival()
    fixed_schedule: bool = False
    """Send each row of the dataset's trace at its own time. The load ends with the last row."""
    fixed_schedule_auto_offset: bool | None = None
    """True sends the first row at once, false at its own time after the trace's time zero. Default:
    true without a start offset."""
    fixed_schedule_start_offset: DurationNs | None = None
    """Time in the trace at which the schedule starts; rows before it are left out."""
    fixed_schedule_end_offset: DurationNs | None = None
    """Time in the trace after which rows are left out."""
    replay_speedup: Annotated[float, Field(gt=0)] = 1.0
    """Factor by which the times and delays of the trace are shorter."""
    requests: Annotated[int, Field(gt=0)] | None = None
    duration: PositiveDurationNs | None = None
    grace_period: DurationNs = 30 * SECOND_NS
    """Time after the end of a duration in which requests in flight may complete; then they are
    cancelled."""
    ramp: DurationNs = 0
    """Time over which concurrency or rate grows linearly from zero."""
    samples_per_query: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Requests that are sent together. The next ones are sent when all of them have ended, which
    needs as many users, and one worker."""
    warmup: Warmup | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.samples_per_query > 1:
            self._check_queries()
        if self.fixed_schedule or self.rate_points:
            return self
        if self.concurrency is None and self.request_rate is None:
            raise ValueError(
                "a load needs {concurrency} (closed loop) or {request_rate} (open loop)"
            )
        if self.requests is None and not self.duration:
            raise ValueError("a load needs {requests} or {duration}, or the run would never end")
        if self.request_rate is None and self.arrival != Arrival():
            raise ValueError(
                "{arrival.pattern} needs {request_rate}: a closed loop has no arrivals"
            )
        if self.duration and self.ramp > self.duration:
            ramp, duration = format_duration(self.ramp), format_duration(self.duration)
            raise ValueError(f"{{ramp}} {ramp} is longer than {{duration}} {duration}")
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if not self.fixed_schedule:
            given = [name for name in _OF_A_SCHEDULE if self._has(name)]
            if given:
                raise ValueError(f"{{{given[0]}}} needs {{fixed_schedule}}")
            return self
        others = ("request_rate", "arrival.pattern", "ramp")
        for name in [name for name in others if self._has(name.partition(".")[0])]:
            raise ValueError(
                f"{{{name}}} and {{fixed_schedule}} both say when requests are sent; "
                "give one of them"
            )
        start, end = self.fixed_schedule_start_offset, self.fixed_schedule_end_offset
        if start is not None and self.fixed_schedule_auto_offset:
            raise ValueError(
                "{fixed_schedule_auto_offset} and {fixed_schedule_start_offset} both say when the "
                "schedule starts; give one of them"
            )
        if end is not None and end < (start or 0):
            raise ValueError(
                f"{{fixed_schedule_end_offset}} {format_duration(end)} is before "
                f"{{fixed_schedule_start_offset}} {format_duration(start or 0)}"
            )
        return self

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        given = [name for name in ("stages", "rate_series") if self._has(name)]
        if not given:
            return self
        others = ("request_rate", "stages", "rate_series", "fixed_schedule", "ramp")
        for name in (each for each in others if each != given[0] and self._has(each)):
            raise ValueError(
                f"{{{name}}} and {{{given[0]}}} both say when requests are sent; give one of them"
            )
        times = [point.at for point in self.rate_series or ()]
        if times and (times[0] != 0 or times != sorted(times) or times[-1] == 0):
            raise ValueError(
                "{rate_series}: expected points in the order of their times, the first at 0s"
            )
        if not any(rate for _, rate in self.rate_points):
            raise ValueError(f"{{{given[0]}}}: every rate is 0; nothing would be sent")
        return self

    def _has(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def _check_queries(self) -> None:
        size = self.samples_per_query
        if self.is_open_loop or self.concurrency != size or self.ramp:
            raise ValueError(
                f"{{samples_per_query}} {size} needs {{concurrency}} {size}, and neither a "
                "schedule nor {ramp}: one query is on its way at a time"
            )
        for limits in (self, self.warmup):
            if limits is not None and limits.requests is not None and limits.requests % size:
                raise ValueError(
                    f"{{samples_per_query}} {size}: {limits.requests} requests are no whole queries"
                )

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are due by the clock rather than by the previous response."""
        return self.request_rate is not None or self.fixed_schedule or bool(self.rate_points)

    @property
    def rate_points(self) -> tuple[tuple[int, float], ...]:
        """Times in ns and rates of a rate that changes; empty if it does not."""
        points = [(point.at, point.rate) for point in self.rate_series or ()]
        start = 0
        for stage in self.stages or ():
            points += [(start, stage.rate), (start + stage.duration, stage.rate)]
            start += stage.duration
        return tuple(points)

    @property
    def peak_rate(self) -> float | None:
        """Highest rate of an open loop; None in closed loop, or if a trace decides."""
        rates = [rate for _, rate in self.rate_points]
        return max(rates) if rates else self.request_rate

    @property
    def end(self) -> int | None:
        """Time after which nothing is sent; None if only a number of requests or a trace ends the
        load."""
        ends = [self.duration, self.rate_points[-1][0] if self.rate_points else None]
        return min((each for each in ends if each is not None), default=None)

    @property
    def longest_schedule(self) -> int | None:
        """Longest time until the last row of a fixed schedule is due; None if its trace decides."""
        if self.fixed_schedule_end_offset is None:
            return None
        length = self.fixed_schedule_end_offset - (self.fixed_schedule_start_offset or 0)
        return round(length / self.replay_speedup)

    @property
    def rates_text(self) -> str:
        """A rate that changes, in words."""
        if self.stages:
            return ", ".join(f"{s.rate:g}/s for {format_duration(s.duration)}" for s in self.stages)
        rates = [rate for _, rate in self.rate_points]
        return f"{min(rates):g} to {max(rates):g} requests/s in {len(rates)} points"

    @property
    def schedule_text(self) -> str:
        """A fixed schedule in words."""
        start, end = self.fixed_schedule_start_offset, self.fixed_schedule_end_offset
        words = ["the trace's own times"]
        words += [f"from {format_duration(start)}"] if start is not None else []
        words += [f"to {format_duration(end)}"] if end is not None else []
        words += [f"at {self.replay_speedup:g} times its speed"] if self.replay_speedup != 1 else []
        return " ".join(words)


_OF_A_SCHEDULE = (
    "fixed_schedule_auto_offset",
    "fixed_schedule_start_offset",
    "fixed_schedule_end_offset",
    "replay_speedup",
)


class DatasetKind(StrEnum):
    """The source of the prompts."""

    SYNTHETIC = "synthetic"
    SINGLE_TURN = "single_turn"
    """JSONL, one prompt or whole payload a line."""
    MULTI_TURN = "multi_turn"
    """JSONL, one conversation a line. A turn's `delay` counts from the previous response; that of a
    first turn is ignored, since the load decides when a conversation begins."""
    SHAREGPT = "sharegpt"
    """A ShareGPT JSON file: a list of conversations."""
    MOONCAKE_TRACE = "mooncake_trace"
    """JSONL, one request a line: lengths and the hash ids of the prompt's blocks."""
    BAILIAN_TRACE = "bailian_trace"
    """JSONL, the same with smaller blocks."""
    BURST_GPT_TRACE = "burst_gpt_trace"
    """CSV with `Timestamp`, `Request tokens` and `Response tokens`."""
    AZURE_TRACE = "azure_trace"
    """CSV with `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`."""


TRACES = (
    DatasetKind.MOONCAKE_TRACE,
    DatasetKind.BAILIAN_TRACE,
    DatasetKind.BURST_GPT_TRACE,
    DatasetKind.AZURE_TRACE,
)
"""Kinds whose rows have times."""


SYNTHETIC_ONLY = ("mix", "prefix", "turns", "images", "sounds", "batch_size")
"""Keys of a dataset that describe synthetic prompts."""


class Dataset(Model):
    """The prompts, built and rendered to bytes once. The prompt of request `i` depends only on `i`
    and the seed."""

    kind: DatasetKind = DatasetKind.SYNTHETIC
    file: str | None = None
    public: Literal["sharegpt"] | None = None
    """A public dataset, downloaded once into the cache folder."""
    url: str | None = None
    """URL of the public dataset, in place of its usual one."""
    max_download: SizeBytes = 2 * 2**30
    entries: Annotated[int, Field(gt=0)] | None = None
    """Number of distinct prompts: 1,000 when synthetic, all of a file."""
    order: Literal["sequential", "shuffled"] = "sequential"
    input_tokens: Length = Length(mean=550)
    """Of a ranking, the tokens of the query alone."""
    mix: tuple[Shape, ...] = ()
    """Kinds of synthetic requests, in place of `input_tokens` and `output_tokens`."""
    passages: Passages = Passages()
    prefix: Prefix = Prefix()
    turns: Turns = Turns()
    images: Images = Images()
    sounds: Sounds = Sounds()
    batch_size: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Texts of a synthetic request, for APIs that take several."""
    output_tokens: Length | None = None
    """Maximum sent with each request; values in a dataset file take precedence."""
    block_size: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Tokens for each hash id of a trace: 512 in a Mooncake trace, 16 in a Bailian trace."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Checksum of the public dataset's file; another file is refused. The usual file's is built
    in."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.kind is DatasetKind.SYNTHETIC and (self.file or self.public):
            raise ValueError(
                "{kind} synthetic takes no file; expected single_turn, multi_turn, sharegpt, "
                "mooncake_trace, bailian_trace, burst_gpt_trace or azure_trace"
            )
        has_file_only = self.kind not in (DatasetKind.SYNTHETIC, DatasetKind.SHAREGPT)
        if has_file_only and not self.file:
            raise ValueError(f"{{kind}} {self.kind} needs {{file}}")
        if self.kind is DatasetKind.SHAREGPT and bool(self.file) == bool(self.public):
            raise ValueError("{kind} sharegpt needs either {file} or {public} sharegpt")
        if self.public and self.kind is not DatasetKind.SHAREGPT:
            raise ValueError(f"{{public}} sharegpt needs {{kind}} sharegpt, not {self.kind}")
        has_blocks = self.kind in (DatasetKind.MOONCAKE_TRACE, DatasetKind.BAILIAN_TRACE)
        if self.block_size is not None and not has_blocks:
            raise ValueError(
                f"{{block_size}} needs {{kind}} mooncake_trace or bailian_trace, not {self.kind}"
            )
        synthetic = [name for name in SYNTHETIC_ONLY if self._is_set(name)]
        if synthetic and self.kind is not DatasetKind.SYNTHETIC:
            raise ValueError(f"{{{synthetic[0]}}} needs {{kind}} synthetic, not {self.kind}")
        if self.mix and (self._is_set("input_tokens") or self.output_tokens is not None):
            raise ValueError(
                "{mix} has lengths of its own; leave out {input_tokens} and {output_tokens}"
            )
        if self.batch_size > 1 and (self._is_set("prefix") or self._is_set("turns")):
            raise ValueError("{batch_size} texts have neither {prefix} nor {turns}")
        if self.url and not self.public:
            raise ValueError("{url} needs {public}: it says where the public dataset is")
        if self.sha256 and not self.public:
            raise ValueError("{sha256} needs {public}: it says what the public dataset is")
        return self

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)


class Tokenizer(Model):
    """The tokenizer that counts tokens exactly: a `tokenizer.json`, a folder that holds one, or a
    hub name."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """Without one, synthetic lengths are approximate and output tokens come from the server's
    usage."""
    revision: str = "main"


class Workers(Model):
    """The number of processes or pods that send the load."""

    min: Annotated[int, Field(gt=0, le=10_000)] = 1
    max: Annotated[int, Field(gt=0, le=10_000)] | None = None
    connections_per_worker: Annotated[int, Field(gt=0, le=60_000)] = 500
    """Users for each worker when the load is sized for a cluster."""
    record_processors: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """Number of record processors. Default: a quarter of the workers."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"{{max}} {self.max} is below {{min}} {self.min}")
        return self


class Objective(Model):
    """A limit on one statistic of one metric; the unit is the metric's, durations take units."""

    metric: str
    stat: Literal["avg", "min", "max", "p50", "p75", "p90", "p95", "p99"] = "avg"
    max: float | str | None = None
    min: float | str | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.max is None and self.min is None:
            raise ValueError("an objective needs {max} or {min}")
        return self


class Slo(Model):
    """Objectives of the run (exit code 4 if one fails), and the limits of a good request."""

    objectives: tuple[Objective, ...] = ()
    goodput: dict[str, float | str] = Field(default_factory=dict)
    """Maps a metric tag to the highest value of a good request."""
    error_budget: Share = 0.01
    """Share of the requests that may fail, be cut off or stay unsent. Above it every objective on a
    metric of successful requests fails."""


class BenchmarkConfig(Model):
    """The configuration of one load test."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")] = "benchmark"
    endpoint: Endpoint
    load: Load
    dataset: Dataset = Dataset()
    tokenizer: Tokenizer = Tokenizer()
    workers: Workers = Workers()
    deployment: Deployment = Deployment()
    slo: Slo = Slo()
    telemetry: Telemetry = Telemetry()
    artifacts: Artifacts = Artifacts()
    random_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    experiment: Experiment | None = None
    """Trials of this config; the other keys are then those of the first one."""
    targets: tuple[NamedTarget, ...] = ()
    """Targets that are measured at the same time, each by a run of this config of its own."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if problem := problem_of(self.targets):
            raise ValueError(problem)
        if self.targets and self.experiment is not None:
            raise ValueError(
                "{targets}: the trials of an {experiment} would not start together; leave out one "
                "of both"
            )
        if self.endpoint.type in WITHOUT_STREAMS and self.endpoint.streaming:
            raise ValueError(
                f"{{endpoint.streaming}}: the {self.endpoint.type} API does not stream"
            )
        if self.dataset.passages != Passages() and self.endpoint.type not in RANKINGS:
            raise ValueError(
                f"{{dataset.passages}} needs {{endpoint.type}} {', '.join(RANKINGS[:-1])} or "
                f"{RANKINGS[-1]}, not {self.endpoint.type}"
            )
        if self.endpoint.type is EndpointType.RAW and self.dataset.kind is DatasetKind.SYNTHETIC:
            raise ValueError(
                "{endpoint.type} raw sends the payloads of a file; give {dataset.file}"
            )
        if self.deployment.ranks != Ranks() or RANK_POD in self.deployment.pods:
            raise ValueError(
                "{deployment.ranks} and {deployment.pods.rank} are for a {workload}; "
                "an inference benchmark has workers"
            )
        dataset, kind = self.dataset, self.endpoint.type
        if dataset.batch_size > 1 and kind not in BATCHES:
            raise ValueError(
                f"{{dataset.batch_size}} needs {{endpoint.type}} {' or '.join(BATCHES)}, not {kind}"
            )
        if dataset.images.number and kind not in MESSAGE_APIS:
            raise ValueError(
                f"{{dataset.images}} needs {{endpoint.type}} {', '.join(MESSAGE_APIS[:-1])} or "
                f"{MESSAGE_APIS[-1]}, not {kind}"
            )
        if dataset.sounds.number and kind is not EndpointType.CHAT:
            raise ValueError(f"{{dataset.sounds}} needs {{endpoint.type}} chat, not {kind}")
        if dataset.turns != Turns() and kind is not EndpointType.CHAT:
            raise ValueError(f"{{dataset.turns}} needs {{endpoint.type}} chat, not {kind}")
        if dataset.prefix != Prefix() and kind in (EndpointType.EMBEDDINGS, *RANKINGS):
            raise ValueError(f"{{dataset.prefix}} is for generated text; {kind} generates none")
        if self.load.fixed_schedule and self.dataset.kind not in TRACES:
            raise ValueError(
                f"{{load.fixed_schedule}} needs the times of a trace, and {{dataset.kind}} is "
                f"{self.dataset.kind}; expected {', '.join(TRACES)}"
            )
        if self.load.fixed_schedule and self.dataset.order != "sequential":
            raise ValueError(
                f"{{dataset.order}} {self.dataset.order}: {{load.fixed_schedule}} sends the rows "
                "in the order of their times; leave it out"
            )
        conversations = (DatasetKind.MULTI_TURN, DatasetKind.SHAREGPT)
        if self.dataset.kind in conversations and self.endpoint.type is not EndpointType.CHAT:
            raise ValueError(
                f"{{dataset.kind}} {self.dataset.kind} needs {{endpoint.type}} chat, "
                f"not {self.endpoint.type}"
            )
        if self.load.samples_per_query > 1:
            if self.workers.max != 1:
                raise ValueError(
                    "{load.samples_per_query}: requests that are sent together are sent by one "
                    "worker; set {workers.max} 1"
                )
            if self.dataset.kind in conversations:
                raise ValueError(
                    f"{{load.samples_per_query}} sends single requests; {{dataset.kind}} "
                    f"{self.dataset.kind} has conversations"
                )
        search = self.experiment.search if self.experiment else None
        if search is not None and search.needs_objectives and not self.slo.objectives:
            raise ValueError(
                "{experiment.search}: what holds is said by {slo.objectives}, which are missing; "
                "give them, or {experiment.search.holds} or {experiment.search.maximize}"
            )
        return self
