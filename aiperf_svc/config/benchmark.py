"""The configuration that a user writes: one frozen BenchmarkConfig for a laptop or a cluster.

All defaults are defined in this package, each subject in its own module. Unknown keys are refused.
Inside the model, durations are nanoseconds and sizes bytes (`units`). Checks that involve
several keys are at the bottom of the model that owns the keys.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config import agentx
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.base import Model, Name
from aiperf_svc.config.dataset import (
    AGENT_TRACES,
    TRACES,
    CacheBust,
    Dataset,
    DatasetKind,
    Tokenizer,
)
from aiperf_svc.config.deployment import RANK_POD, Deployment
from aiperf_svc.config.economics import Economics
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.events import Event, schedule_problem
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.hooks import Hooks
from aiperf_svc.config.load import Load
from aiperf_svc.config.placement import Ranks
from aiperf_svc.config.prompts import Passages, Prefix, Turns
from aiperf_svc.config.quality import Quality
from aiperf_svc.config.scaling import Scaling
from aiperf_svc.config.search import Search
from aiperf_svc.config.several_targets import NamedTarget, problem_of
from aiperf_svc.config.slo import Slo
from aiperf_svc.config.telemetry import Telemetry
from aiperf_svc.config.units import Share
from aiperf_svc.domain.endpoint_types import EndpointType, Feature, names_with, types_with


class Workers(Model):
    """The number of processes or pods that send the load."""

    min: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Minimum number of worker processes, which send the requests."""
    max: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """Maximum number of worker processes."""
    connections_per_worker: Annotated[int, Field(gt=0, le=60_000)] = 500
    """Users per worker when the load is sized for a cluster."""
    record_processors: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """Number of record processors, which read the responses. Default: a quarter of the workers."""
    sizing: Literal["formula", "load"] = "formula"
    """How the number of workers on a cluster is computed: `formula`, from `connections_per_worker`;
    or `load`, from the expected rates and what one core can handle."""
    expected_requests: Annotated[float, Field(gt=0)] | None = None
    """Expected requests per second of all users together. Default in an open loop: its own rate.
    For `sizing: load`."""
    expected_chunks: Annotated[float, Field(gt=0)] | None = None
    """Expected chunks per second of all streams together. For `sizing: load`."""
    reserve: Annotated[Share, Field(ge=0, le=0.9)] = 0.5
    """Share of each worker's core that stays free with `sizing: load`."""
    requests_per_core: Annotated[float, Field(gt=0)] | None = None
    """Requests per second that one core of the cluster can send, as `aiperf-svc calibrate` measures
    it on such a node. Default: 5,000. Not used in a local run, which has its own calibration."""
    chunks_per_core: Annotated[float, Field(gt=0)] | None = None
    """Chunks of paced streams per second that one core of the cluster can read. Default: 50,000."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"{{max}} {self.max} is below {{min}} {self.min}")
        if self.sizing == "load" and self.expected_chunks is None:
            raise ValueError("{sizing} load needs {expected_chunks}, of all streams together")
        has_expected_load = self.expected_chunks is not None or self.expected_requests is not None
        if self.sizing == "formula" and has_expected_load:
            raise ValueError("{expected_requests} and {expected_chunks} need {sizing}: load")
        return self


MIN_TURNS = 2
"""Minimum mean number of turns for which the time of each turn matters."""
SEEDS = 2**63
"""Number of seeds."""
INFERENCE = "inference"
"""The kind of workload of a config without `workload`."""


class BenchmarkConfig(Model):
    """The configuration of one load test."""

    name: Name = "benchmark"
    """Name of the results."""
    scenario: Literal["agentx"] | None = None
    """Published benchmark whose rules set the keys that the config leaves out: `agentx`, the agent
    benchmark of InferenceX. `aiperf-svc verify` checks whether a run conforms."""
    endpoint: Endpoint
    load: Load
    dataset: Dataset = Dataset()
    tokenizer: Tokenizer = Tokenizer()
    workers: Workers = Workers()
    deployment: Deployment = Deployment()
    scaling: Scaling | None = None
    slo: Slo = Slo()
    events: tuple[Event, ...] = ()
    """Disturbances of the server during the load, in the order of their times."""
    quality: Quality | None = None
    telemetry: Telemetry = Telemetry()
    economics: Economics = Economics()
    artifacts: Artifacts = Artifacts()
    random_seed: Annotated[int, Field(ge=0, lt=SEEDS)] = 0
    """Seed of prompts and arrivals. The same seed produces the same requests."""
    experiment: Experiment | None = None
    """Trials of this config. The other keys then have the values of the first trial."""
    targets: tuple[NamedTarget, ...] = ()
    """Targets that are measured at the same time, each by its own run of this config."""

    @property
    def kind(self) -> str:
        """The kind of workload."""
        return INFERENCE

    @property
    def inference(self) -> Self:
        """This config; None for a benchmark of a tool."""
        return self

    @property
    def tool(self) -> None:
        """None: this is not a benchmark of a tool."""
        return None

    @property
    def search(self) -> Search | None:
        """The search of its experiment."""
        return self.experiment.search if self.experiment is not None else None

    @property
    def counting_tokenizer(self) -> str:
        """Name of the tokenizer whose counts are used; empty if the server's counts are used."""
        return "" if self.endpoint.use_server_token_count else self.tokenizer.name or ""

    @property
    def prompt_seed(self) -> int:
        """Seed of the prompt texts: the random seed, combined with the dataset's variant."""
        return self.random_seed + ((self.dataset.variant or 1) - 1) * SEEDS

    @model_validator(mode="before")
    @classmethod
    def _with_scenario(cls, data: Any) -> Any:
        """Add the keys of the scenario. A config that was saved with them already has them."""
        if not isinstance(data, Mapping) or data.get("scenario") not in agentx.NAMES:
            return data
        return agentx.with_agentx(data) | {"scenario": agentx.NAMES[0]}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self._check_targets()
        self._check_dataset_and_api()
        self._check_schedule()
        self._check_conversations()
        self._check_agent_trace()
        self._check_search()
        self._check_hooks()
        self._check_proxy()
        self._check_quality()
        self._check_token_ids()
        self._check_events()
        self._check_blocks()
        return self

    def _check_token_ids(self) -> None:
        if not self.endpoint.prompt_token_ids:
            return
        needed = (
            ("endpoint.type", "completions", self.endpoint.type is EndpointType.COMPLETIONS),
            ("tokenizer.name", "a tokenizer", self.tokenizer.name),
            ("tokenizer.apply_chat_template", "false", not self.tokenizer.apply_chat_template),
            # A marker is inserted into the text of a prompt.
            ("dataset.cache_bust", "none", self.dataset.cache_bust is CacheBust.NONE),
        )
        for key, expected, is_so in needed:
            if not is_so:
                raise ValueError(f"{{endpoint.prompt_token_ids}} needs {{{key}}} {expected}")

    def _check_quality(self) -> None:
        if self.quality is None:
            return
        has_tasks = self.quality.lm_eval is not None
        for key, is_used, feature in (
            ("quality.file", not has_tasks, Feature.QUESTIONS),
            ("quality.lm_eval.tasks", has_tasks, Feature.LM_EVAL),
            ("quality.logprobs", self.quality.logprobs, Feature.LOGPROBS),
        ):
            self._check_feature(key, feature, is_set=is_used)
        for key, is_set in (
            ("endpoint.urls", self.endpoint.urls),
            ("endpoint.models", self.endpoint.models),
            ("endpoint.headers", self.endpoint.headers),
            ("endpoint.proxy", self.endpoint.proxy),
            ("endpoint.tls.ca", self.endpoint.tls.ca),
            ("endpoint.api_key_header", self.endpoint.api_key_header),
        ):
            if self.quality.lm_eval is not None and is_set:
                raise ValueError(
                    f"{{quality.lm_eval.tasks}} cannot use {{{key}}}; run the tasks alone as the "
                    "workload lm-eval, or use {quality.file}"
                )

    def _check_targets(self) -> None:
        if problem := problem_of(self.targets, self.experiment):
            raise ValueError(problem)
        if self.scaling is not None and self.targets:
            raise ValueError("{scaling} watches one server; leave out {targets}")
        if self.scaling is not None and self.experiment and self.experiment.fan_out == "jobs":
            raise ValueError(
                "{scaling}: an index of Jobs has one server; leave out {experiment.fan_out} jobs"
            )
        if self.deployment.ranks != Ranks() or RANK_POD in self.deployment.pods:
            raise ValueError(
                "{deployment.ranks} and {deployment.pods.rank} are for a workload; "
                "an inference benchmark has workers"
            )

    def _check_dataset_and_api(self) -> None:
        dataset, api = self.dataset, self.endpoint.type
        if self.endpoint.streaming and not api.has(Feature.STREAM):
            raise ValueError(f"{{endpoint.streaming}}: the {api} API does not stream")
        self._check_order()
        for key, is_set, feature in (
            ("dataset.passages", dataset.passages != Passages(), Feature.RANKING),
            ("dataset.batch_size", dataset.batch_size > 1, Feature.BATCH),
            ("dataset.images", dataset.images.number > 0, Feature.MESSAGES),
            ("dataset.sounds", dataset.sounds.number > 0, Feature.SOUND),
            ("dataset.turns", dataset.turns != Turns(), Feature.CONVERSATION),
            ("endpoint.session_body", bool(self.endpoint.session_body), Feature.CONVERSATION),
            (
                "tokenizer.apply_chat_template",
                self.tokenizer.apply_chat_template,
                Feature.MESSAGES,
            ),
        ):
            self._check_feature(key, feature, is_set=is_set)
        if api is EndpointType.RAW and dataset.kind is DatasetKind.SYNTHETIC:
            raise ValueError(
                "{endpoint.type} raw sends the payloads of a file; give {dataset.file}"
            )
        if dataset.prefix != Prefix() and not api.has(Feature.TEXT):
            raise ValueError(f"{{dataset.prefix}} is for generated text; {api} generates none")
        if api.has(Feature.SOUND_ALONE):
            self._check_sounds_alone()

    def _check_feature(self, key: str, feature: Feature, *, is_set: bool) -> None:
        """Raise ValueError if a key is set that needs a feature which the API does not have."""
        api = self.endpoint.type
        if is_set and not api.has(feature):
            raise ValueError(f"{{{key}}} needs {{endpoint.type}} {names_with(feature)}, not {api}")

    def _check_order(self) -> None:
        if self.dataset.order != "random":
            return
        if self.dataset.kind in (*TRACES, *AGENT_TRACES):
            raise ValueError(
                f"{{dataset.order}} random: rows of {{dataset.kind}} {self.dataset.kind} are read "
                "one after the other; expected sequential or shuffled"
            )
        if self.load.user_centric is not None:
            raise ValueError(
                "{dataset.order} random: users of {load.user_centric} take one conversation after "
                "the other; expected sequential or shuffled"
            )

    def _check_sounds_alone(self) -> None:
        dataset = self.dataset
        if dataset.kind is not DatasetKind.SYNTHETIC:
            return
        if dataset.sounds.number != 1:
            raise ValueError(
                f"{{dataset.sounds.number}} {dataset.sounds.number}: a synthetic request of "
                f"{self.endpoint.type} is one sound; set 1"
            )
        if name := dataset._first_set("input_tokens", "mix", "prefix"):
            raise ValueError(
                f"{{dataset.{name}}} is for texts; a synthetic request of {self.endpoint.type} is "
                "a sound alone ({dataset.sounds})"
            )

    def _check_schedule(self) -> None:
        if self.load.limits_prefill and not self.endpoint.streaming:
            key = "load" if self.load.prefill_concurrency is not None else "load.warmup"
            raise ValueError(
                f"{{{key}.prefill_concurrency}} needs {{endpoint.streaming}}: without a stream "
                "there is no first token"
            )
        if not self.load.fixed_schedule:
            return
        if self.dataset.kind not in TRACES:
            raise ValueError(
                f"{{load.fixed_schedule}} needs the times of a trace, and {{dataset.kind}} is "
                f"{self.dataset.kind}; expected {', '.join(TRACES)}"
            )
        if self.dataset.order != "sequential":
            raise ValueError(
                f"{{dataset.order}} {self.dataset.order}: {{load.fixed_schedule}} sends the rows "
                "in the order of their times; leave it out"
            )

    def _check_conversations(self) -> None:
        kind = self.dataset.kind
        has_conversations = kind in (DatasetKind.MULTI_TURN, DatasetKind.SHAREGPT)
        may_have_turns = has_conversations or kind is DatasetKind.MOONCAKE_TRACE
        if kind is DatasetKind.SYNTHETIC:
            may_have_turns = self.dataset.turns.number.mean >= MIN_TURNS
        if self.dataset.history == "recorded" and not has_conversations:
            raise ValueError(
                f"{{dataset.history}} recorded needs the responses of a file: {{dataset.kind}} "
                f"multi_turn or sharegpt, not {kind}"
            )
        if self.load.user_centric is not None and not may_have_turns:
            raise ValueError(
                "{load.user_centric.rate} needs conversations: a {dataset.turns.number.mean} of "
                f"{MIN_TURNS} or more, or {{dataset.kind}} multi_turn, sharegpt or "
                "mooncake_trace; for single requests use {load.request_rate}"
            )
        if has_conversations and not self.endpoint.type.has(Feature.CONVERSATION):
            raise ValueError(
                f"{{dataset.kind}} {kind} needs {{endpoint.type}} "
                f"{names_with(Feature.CONVERSATION)}, not {self.endpoint.type}"
            )
        if self.load.samples_per_query == 1:
            return
        if self.workers.max != 1:
            raise ValueError(
                "{load.samples_per_query}: requests that are sent together are sent by one "
                "worker; set {workers.max} 1"
            )
        if has_conversations:
            raise ValueError(
                f"{{load.samples_per_query}} sends single requests; {{dataset.kind}} {kind} has "
                "conversations"
            )

    def _check_agent_trace(self) -> None:
        kind, load, api = self.dataset.kind, self.load, self.endpoint.type
        if kind not in AGENT_TRACES:
            if load.agentic is not None:
                raise ValueError(
                    f"{{load.agentic}} replays session trees; {{dataset.kind}} {kind} has none: "
                    f"expected {', '.join(AGENT_TRACES)}"
                )
            return
        is_of_blocks = kind is DatasetKind.WEKA_TRACE
        fitting = types_with(Feature.FORCED_LENGTH if is_of_blocks else Feature.CONVERSATION)
        if api not in fitting:
            raise ValueError(
                f"{{dataset.kind}} {kind} needs {{endpoint.type}} {', '.join(fitting)}, not {api}"
            )
        if name := load._first_set("user_centric", "prefill_concurrency", "cancellation"):
            raise ValueError(
                f"{{load.{name}}} is for conversations of one stream; leave it out with "
                f"{{dataset.kind}} {kind}"
            )
        if load.samples_per_query > 1:
            raise ValueError(
                f"{{load.samples_per_query}} sends single requests; {{dataset.kind}} {kind} has "
                "session trees"
            )
        agentic = load.agentic
        if agentic is not None and agentic.system_idle_cap is not None and self.workers.max != 1:
            raise ValueError(
                "{load.agentic.system_idle_cap}: only a worker that sends all requests knows when "
                "none is in flight; set {workers.max} 1"
            )

    def _check_proxy(self) -> None:
        if self.endpoint.http2 and self.deployment.target.kind == "vllm":
            raise ValueError(
                "{endpoint.http2}: {deployment.target.kind} vllm supports HTTP/1.1 only; leave it "
                "out"
            )
        if self.endpoint.proxy is not None and self.deployment.target.kind != "none":
            raise ValueError(
                "{endpoint.proxy}: a stack's own target ({deployment.target}) is reached without "
                "one; leave out one of them"
            )

    @property
    def may_call_hooks(self) -> bool:
        """Whether any trial of this config has hooks."""
        keys = self.experiment.keys if self.experiment else ()
        return bool(self.endpoint.all_hooks) or any(
            key == "endpoint" or key.removeprefix("endpoint.").split(".")[0] in Hooks.model_fields
            for key in keys
        )

    def _check_hooks(self) -> None:
        if not self.load.has_warmup:
            for hook in self.endpoint.all_hooks:
                if "warmup" in (hook.before, hook.after):
                    raise ValueError(
                        f"{{endpoint.hooks}}: {hook.path} belongs to the warmup, and there is no "
                        "{load.warmup}"
                    )

    def _check_events(self) -> None:
        if not self.events:
            return
        if problem := schedule_problem(self.events, self.load):
            raise ValueError(problem)
        if self.targets:
            raise ValueError("{events} disturb one server; leave out {targets}")
        if self.experiment is not None and self.experiment.fan_out == "jobs":
            raise ValueError(
                "{events} are for stacks of their own; leave out {experiment.fan_out} jobs"
            )

    def _check_blocks(self) -> None:
        blocks = self.experiment.blocks if self.experiment is not None else None
        if blocks is not None and blocks.uptime is not None:
            kind = self.deployment.target.kind
            if kind in ("none", "release"):
                raise ValueError(
                    "{experiment.blocks.uptime} is that of one container, and "
                    f"{{deployment.target.kind}} is {kind}; leave it out"
                )

    def _check_search(self) -> None:
        is_sized = self.workers.sizing == "load" and self.workers.expected_requests is None
        if is_sized and not self.load.is_open_loop:
            raise ValueError(
                "{workers.sizing} load of a closed loop needs {workers.expected_requests}"
            )
        search = self.experiment.search if self.experiment else None
        has_condition = search is None or search.maximize or search.condition() is not None
        if not has_condition and not self.slo.objectives:
            raise ValueError(
                "{experiment.search} needs a condition: set {slo.objectives}, "
                "{experiment.search.holds} or {experiment.search.maximize}"
            )
