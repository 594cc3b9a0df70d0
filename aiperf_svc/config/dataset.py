"""The dataset: the source of the prompts, and the tokenizer that counts their tokens. `prompts`
defines the shapes of synthetic prompts."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.prompts import (
    Images,
    Length,
    Passages,
    Prefix,
    Shape,
    Sounds,
    ToolResults,
    Turns,
)
from aiperf_svc.config.units import PositiveDurationNs, SizeBytes
from aiperf_svc.config.urls import is_http


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
    RANDOM_POOL = "random_pool"
    """JSONL as of `single_turn`, or a folder of such files; lines are drawn with replacement, one
    of each file for a request."""
    MOONCAKE_TRACE = "mooncake_trace"
    """JSONL, one request a line: lengths and the hash ids of the prompt's blocks."""
    BAILIAN_TRACE = "bailian_trace"
    """JSONL as of `mooncake_trace`, with smaller blocks."""
    BURST_GPT_TRACE = "burst_gpt_trace"
    """CSV with `Timestamp`, `Request tokens` and `Response tokens`."""
    AZURE_TRACE = "azure_trace"
    """CSV with `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`."""
    WEKA_TRACE = "weka_trace"
    """Agent sessions with subagents, as lengths and hash ids: a JSON file or line for each, or a
    folder of such files."""
    DAG_JSONL = "dag_jsonl"
    """JSONL, one agent session a line, which may spawn, fork and join others."""
    OTEL_TRACE = "otel_trace"
    """Agent sessions as OpenTelemetry spans with GenAI attributes: files as of `weka_trace`."""


TRACES = (
    DatasetKind.MOONCAKE_TRACE,
    DatasetKind.BAILIAN_TRACE,
    DatasetKind.BURST_GPT_TRACE,
    DatasetKind.AZURE_TRACE,
)
"""Kinds whose rows have timestamps."""
AGENT_TRACES = (DatasetKind.WEKA_TRACE, DatasetKind.DAG_JSONL, DatasetKind.OTEL_TRACE)
"""Kinds whose entries are session trees."""
FILE_KINDS = tuple(kind for kind in DatasetKind if kind is not DatasetKind.SYNTHETIC)


History = Literal["live", "recorded"]
"""Source of the responses in the later requests of a conversation."""


class CacheBust(StrEnum):
    """Position of the unique marker that prevents prefix-cache hits."""

    NONE = "none"
    SYSTEM_PREFIX = "system_prefix"
    SYSTEM_SUFFIX = "system_suffix"
    FIRST_TURN_PREFIX = "first_turn_prefix"
    FIRST_TURN_SUFFIX = "first_turn_suffix"

    @property
    def is_for_system(self) -> bool:
        """Whether the marker is in the system prompt."""
        return self in (CacheBust.SYSTEM_PREFIX, CacheBust.SYSTEM_SUFFIX)


SYNTHETIC_ONLY = ("mix", "prefix", "turns", "images", "sounds", "batch_size")
"""Keys of a dataset that describe synthetic prompts."""


class Dataset(Model):
    """The prompts, built and rendered to bytes once. The prompt of request `i` depends only on `i`
    and the seed."""

    kind: DatasetKind = DatasetKind.SYNTHETIC
    """Source and format of the prompts."""
    file: str | None = None
    """File with the prompts."""
    public: Literal["sharegpt"] | None = None
    """Public dataset, downloaded once into the cache folder: `sharegpt`."""
    url: str | None = None
    """URL of the public dataset, instead of its usual one."""
    max_download: SizeBytes = 2 * 2**30
    entries: Annotated[int, Field(gt=0)] | None = None
    """Number of distinct prompts. Default: 1,000 synthetic prompts, or the number of requests if
    that is lower and the order is sequential; 100 of a random pool; all of a file."""
    order: Literal["sequential", "shuffled", "random"] = "sequential"
    """Order of the prompts: `sequential`; `shuffled`, each once before any is repeated, in a new
    order in each pass; or `random`, drawn with replacement."""
    input_tokens: Length = Length(mean=550)
    """Tokens of a synthetic prompt, or of the query of a ranking."""
    mix: tuple[Shape, ...] = ()
    """Mixture of request lengths, instead of `input_tokens` and `output_tokens`."""
    passages: Passages = Passages()
    prefix: Prefix = Prefix()
    turns: Turns = Turns()
    tool_results: ToolResults = ToolResults()
    images: Images = Images()
    sounds: Sounds = Sounds()
    batch_size: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Texts in each synthetic request, for embeddings and completions."""
    cache_bust: CacheBust = CacheBust.NONE
    """Position of a unique marker in each prompt, which prevents prefix-cache hits."""
    cache_bust_per: Literal["entry", "conversation", "request"] = "entry"
    """What gets its own marker: an `entry` of the dataset, which keeps it when it is sent again;
    each `conversation` or session tree that is run; or each `request`, with 64 bits derived from
    the seed and the index of the request."""
    variant: Annotated[int, Field(gt=0, lt=2**32)] | None = None
    """Changing this number changes the words, noise and markers of prompts, but not their lengths,
    so no server has them in its cache. Texts of a file do not change. Default: 1, or the number of
    the trial."""
    history: History = "live"
    """Which responses the later requests of a conversation contain: `live`, the unchanged responses
    of the server, or `recorded`, those of the file, so all servers get the same requests."""
    delay_factor: Annotated[float, Field(ge=0)] = 1.0
    """Factor for all delays between turns, including those of a file."""
    max_delay: PositiveDurationNs | None = None
    """Maximum delay between requests of an agent trace. Longer delays are shortened to it."""
    think_time_only: bool = False
    """Pause between the requests of a `weka_trace` for their recorded think time, if there is one,
    instead of for the time since the recorded end of the previous request."""
    max_context_tokens: Annotated[int, Field(gt=0)] | None = None
    """Skip sessions of an agent trace in which a request has more tokens, output included."""
    output_tokens: Length | None = None
    """Output tokens to request. Values in a dataset file take precedence. Default: no limit."""
    block_size: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Tokens per hash id of a trace. Default: 512 in a Mooncake trace, 16 in a Bailian trace."""
    max_input_tokens: Annotated[int, Field(gt=0)] | None = None
    """Skip rows of a trace with longer prompts."""
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    """Limit on the output tokens that are requested for a row of a trace."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 checksum of the public dataset's file. A file with another checksum is refused. That
    of the usual file is built in."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.kind is DatasetKind.SYNTHETIC and (self.file or self.public):
            raise ValueError(
                "{kind} synthetic reads no file; set {kind} to one that does: "
                f"{', '.join(FILE_KINDS[:-1])} or {FILE_KINDS[-1]}"
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
        if self.kind not in TRACES:
            for name in ("max_input_tokens", "max_output_tokens"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{{{name}}} needs {{kind}} {', '.join(TRACES[:-1])} or {TRACES[-1]}, "
                        f"not {self.kind}"
                    )
        self._check_agent_trace()
        synthetic = self._first_set(*SYNTHETIC_ONLY)
        if synthetic and self.kind is not DatasetKind.SYNTHETIC:
            raise ValueError(f"{{{synthetic}}} needs {{kind}} synthetic, not {self.kind}")
        if self.mix and (self._is_set("input_tokens") or self.output_tokens is not None):
            raise ValueError(
                "{mix} has lengths of its own; leave out {input_tokens} and {output_tokens}"
            )
        if self.batch_size > 1 and self._first_set("prefix", "turns"):
            raise ValueError("{batch_size} texts have neither {prefix} nor {turns}")
        if self.url and not self.public:
            raise ValueError("{url} needs {public}: it is the address of the public dataset")
        if self.url and not is_http(self.url):
            raise ValueError(f"{{url}}: {self.url!r}: expected http:// or https:// and a host")
        if self.sha256 and not self.public:
            raise ValueError("{sha256} needs {public}: it is the checksum of the public dataset")
        return self

    def _check_agent_trace(self) -> None:
        is_tree = self.kind in AGENT_TRACES
        kinds = f"{', '.join(AGENT_TRACES[:-1])} or {AGENT_TRACES[-1]}"
        name = self._first_set("max_delay", "max_context_tokens")
        if name and not is_tree:
            raise ValueError(f"{{{name}}} needs {{kind}} {kinds}, not {self.kind}")
        if self.think_time_only and self.kind is not DatasetKind.WEKA_TRACE:
            raise ValueError(f"{{think_time_only}} needs {{kind}} weka_trace, not {self.kind}")
        if self.cache_bust is CacheBust.NONE and self._is_set("cache_bust_per"):
            raise ValueError("{cache_bust_per} needs {cache_bust}: it sets what gets a marker")
        if is_tree and self.cache_bust in (CacheBust.SYSTEM_SUFFIX, CacheBust.FIRST_TURN_SUFFIX):
            raise ValueError(
                f"{{cache_bust}} {self.cache_bust}: a prompt of {{kind}} {self.kind} has its "
                "marker at the beginning; expected system_prefix or first_turn_prefix"
            )


class Tokenizer(Model):
    """The tokenizer that counts tokens exactly: a `tokenizer.json`, a folder that holds one, or a
    hub name."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """Tokenizer that counts tokens exactly: a `tokenizer.json`, a folder that contains one, or a
    name on the Hugging Face hub. Without one, synthetic lengths are approximate and output tokens
    come from the server's usage."""
    revision: str = "main"
    """Revision on the hub."""
    apply_chat_template: bool = False
    """Count input tokens inside the tokenizer's chat template. Synthetic prompts then have the
    requested length there."""

    @model_validator(mode="after")
    def _has_a_template(self) -> Self:
        if self.apply_chat_template and self.name is None:
            raise ValueError("{apply_chat_template} needs {name}, the tokenizer with the template")
        return self


def is_path(name: str) -> bool:
    """Return whether a name can only be a path. Names on a hub are `owner/name` or `name`."""
    return name.endswith(".json") or name.startswith((".", "/", "~"))
