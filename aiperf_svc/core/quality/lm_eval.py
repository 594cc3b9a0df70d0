"""Writes the settings of lm-evaluation-harness (`lm_eval`, 0.4.10 or newer) and reads its results.

It reads one settings file, because its command line would expose headers to other users of the
machine. It writes `results_*.json` with the metrics of each task and group, and `samples_*.jsonl`
with each question, its answer and its grade. The key of a metric consists of its name and the
filter of the answers: `exact_match,strict-match`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.quality import SETTINGS_FILE, LmEvalTasks
from aiperf_svc.core.endpoints.paths import request_url
from aiperf_svc.core.quality.gate import Answer
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.number_text import count

PROGRAM = "lm_eval"
REMEDY = "pip install 'lm_eval[api]'"
ARGUMENTS = ("run", "--config", SETTINGS_FILE)
RESULTS = "out/*/results_*.json"
SAMPLES = "out/*/samples_*.jsonl"
KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the target's key."""
_RETRIES = 3
_STDERR = "_stderr"


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    metric: str
    """With its filter."""
    value: float
    stderr: float | None
    """Standard error; None if it has none."""
    questions: int | None
    """None for a group."""
    version: str
    """Version of the task."""

    @property
    def text(self) -> str:
        error = "" if self.stderr is None else f" ± {self.stderr:.4g}"
        questions = "" if self.questions is None else f" of {count(self.questions, 'question')}"
        return f"{self.metric} {self.value:.4g}{error}{questions}"


class TaskScores(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a results file."""

    scores: tuple[TaskScore, ...]
    """Scores of the named tasks, in order."""
    tool: str
    """`lm_eval` and its version."""
    hashes: Mapping[str, str]
    """Checksum of the prompts of each task."""
    questions: int
    """Questions of all tasks, including those in groups."""


class _Count(msgspec.Struct):
    effective: int


class _Results(msgspec.Struct):
    results: dict[str, Json]
    lm_eval_version: str
    counts: dict[str, _Count] = msgspec.field(name="n-samples", default_factory=dict)
    versions: Json = {}
    task_hashes: dict[str, str] = {}
    higher_is_better: dict[str, Json] = {}
    """Task to the direction of each metric, by names without filters."""


class _Sample(msgspec.Struct):
    doc_id: int
    filter: str
    resps: list[Any]


def samples_of(task: str) -> str:
    """Return the file pattern for the samples of one task."""
    return f"out/*/samples_{task}_[0-9][0-9][0-9][0-9]-*.jsonl"


def settings(tasks: LmEvalTasks, endpoint: Endpoint, *, concurrency: int) -> bytes:
    """Return the settings file for an endpoint of the API chat or completions. The tasks' files are
    in the same folder."""
    is_chat = endpoint.type is EndpointType.CHAT
    arguments: Json = {
        "model": endpoint.model,
        "base_url": request_url(endpoint),
        "num_concurrent": concurrency,
        "max_retries": _RETRIES,
        "timeout": max(1, endpoint.request_timeout // 10**9),
        "tokenizer_backend": "huggingface" if tasks.tokenizer else None,
        "tokenized_requests": False,
    }
    if tasks.tokenizer:
        arguments["tokenizer"] = tasks.tokenizer
    if tasks.max_length is not None:
        arguments["max_length"] = tasks.max_length
    if not endpoint.tls.verify:
        arguments["verify_certificate"] = False
    if endpoint.tls.ca_file:
        arguments["ca_cert_path"] = endpoint.tls.ca_file
    found: Json = {
        "model": "local-chat-completions" if is_chat else "local-completions",
        "model_args": arguments,
        "tasks": list(tasks.tasks),
        "apply_chat_template": is_chat,
        "log_samples": True,
        "output_path": "out",
    }
    optional = {
        "include_path": "." if tasks.files else None,
        "num_fewshot": tasks.few_shot,
        "limit": tasks.limit,
        "gen_kwargs": endpoint.extra_inputs or None,
    }
    found |= {key: value for key, value in optional.items() if value is not None}
    return json.dumps(found, indent=1).encode()


def read_results(data: bytes, tasks: LmEvalTasks) -> TaskScores:
    """Return the scores in a results file. Raises ValueError."""
    try:
        found = msgspec.json.decode(data, type=_Results)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"results of lm_eval: {error}; it begins with {data[:200]!r}") from error
    return TaskScores(
        scores=tuple(_score(name, found, tasks.metric) for name in tasks.tasks),
        tool=f"lm_eval {found.lm_eval_version}",
        hashes=found.task_hashes,
        questions=sum(each.effective for each in found.counts.values()),
    )


def _score(task: str, found: _Results, metric: str | None) -> TaskScore:
    values = found.results.get(task)
    if values is None:
        names = ", ".join(found.results)
        raise ValueError(f"lm_eval has no result of the task {task!r}; it has {names or 'none'}")
    scores = {
        key: value
        for key, value in values.items()
        if "," in key and not key.partition(",")[0].endswith(_STDERR)
    }
    key = next((key for key in scores if metric in (None, key, key.partition(",")[0])), None)
    if key is None:
        raise ValueError(
            f"task {task} has no metric {metric or ''!r}; it has {', '.join(scores) or 'none'}"
        )
    value = scores[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(
            f"task {task}: {key} is {value!r}, not a score from 0 to 1; name another one in "
            f"`metric`: {', '.join(scores)}"
        )
    name, _, of_filter = key.partition(",")
    if found.higher_is_better.get(task, {}).get(name) is False:
        raise ValueError(
            f"task {task}: smaller values of {key} are better, so it is not a score; name another "
            f"one in `metric`: {', '.join(scores)}"
        )
    stderr = values.get(f"{name}{_STDERR},{of_filter}")
    count = found.counts.get(task)
    return TaskScore(
        task=task,
        metric=key,
        value=float(value),
        stderr=float(stderr) if isinstance(stderr, int | float) else None,
        questions=None if count is None else count.effective,
        version=str(found.versions.get(task, "")),
    )


def read_samples(lines: Iterable[bytes], score: TaskScore, *, first: int) -> list[Answer]:
    """Return the graded answers in the samples file of one task, numbered from `first`. Raises
    ValueError for a metric that is not 0 or 1."""
    metric, _, of_filter = score.metric.partition(",")
    answers: list[Answer] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            sample = msgspec.json.decode(line, type=_Sample)
            grade = msgspec.json.decode(line).get(metric)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"samples of {score.task}: line {number}: {error}") from error
        if sample.filter != of_filter:
            continue
        if grade not in (0, 1):
            raise ValueError(
                f"samples of {score.task}: line {number}: {metric} is {grade!r}; a gate needs a "
                "metric that is 0 or 1 for each question"
            )
        text = _answer(sample.resps)
        answers.append(
            Answer(
                question=first + len(answers),
                repeat=0,
                text=text,
                error="" if text else "an answer without text",
                is_right=bool(grade),
            )
        )
    return answers


def count_without_text(lines: Iterable[bytes]) -> int:
    """Return how many questions in a samples file have an empty answer. Raises ValueError."""
    try:
        samples = [msgspec.json.decode(line, type=_Sample) for line in lines if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"samples of lm_eval: {error}") from error
    # With several filters, a question occurs several times.
    return len({each.doc_id for each in samples if not _answer(each.resps)})


def _answer(responses: Sequence[Any]) -> str:
    """Return the text of an answer, or the number of the likeliest choice."""
    first = responses[0] if responses else None
    while isinstance(first, list) and len(first) == 1:
        first = first[0]
    if isinstance(first, str):
        return first
    try:
        likelihoods = [float(each[0][0]) for each in responses]
    except (TypeError, ValueError, IndexError, KeyError):
        return json.dumps(responses)
    return str(likelihoods.index(max(likelihoods)))
