"""Runs lm-evaluation-harness against a server. `core.quality.lm_eval` has its settings and results,
which the quality gate of an inference benchmark uses too."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.quality import SETTINGS_FILE, LmEvalTasks, metric_tag
from aiperf_svc.config.urls import url_problem
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.quality import lm_eval
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.network import OutsideUrl
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Rank,
    Reading,
    Role,
    Step,
    Tool,
    UnreadableOutput,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

_TYPES = {"chat": EndpointType.CHAT, "completions": EndpointType.COMPLETIONS}


class LmEvalSpec(WorkloadSpec, LmEvalTasks):
    """Tasks of lm-evaluation-harness that are run against one server."""

    kind: Literal["lm-eval"] = "lm-eval"
    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+.*$")]
    """Base URL of the server, as in `endpoint.url`. Its API key is OPENAI_API_KEY in
    `secret_env`."""
    model: Annotated[str, Field(min_length=1)]
    """Model to request."""
    api: Literal["chat", "completions"] = "chat"
    """`chat` can only generate text. `completions` with `tokenizer` can also compare
    likelihoods."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 16
    """Number of questions in flight."""
    extra_inputs: dict[str, object] = Field(default_factory=dict)
    """Additional members of each request that generates text, such as `chat_template_kwargs`."""

    @property
    def endpoint(self) -> Endpoint:
        """The server."""
        return Endpoint(
            url=self.url,
            model=self.model,
            type=_TYPES[self.api],
            extra_inputs=self.extra_inputs,
        )


Config = WorkloadConfig[LmEvalSpec]
_HUB = "https://huggingface.co"
_OFFLINE = "HF_HUB_OFFLINE"
"""Environment variable that prevents downloads from the hub."""
_WITHOUT_TEXT = "answers_without_text"


class LmEval(ToolWorkload[LmEvalSpec]):
    """The kind `lm-eval`."""

    kind = "lm-eval"
    summary = "scores of a server on tasks of lm-evaluation-harness"
    spec = LmEvalSpec
    tools = (Tool(lm_eval.PROGRAM, "", remedy=lm_eval.REMEDY),)
    metrics = (
        MetricInfo(
            tag="score",
            name="Score",
            unit="ratio",
            better="higher",
            formula="mean over the tasks of `metric`, or else of each task's first metric",
        ),
        MetricInfo(
            tag="questions",
            name="Questions",
            unit="count",
            formula="sum of `n-samples`.effective over the tasks",
        ),
        MetricInfo(
            tag=_WITHOUT_TEXT,
            name="Answers without text",
            unit="count",
            better="lower",
            formula="samples with an empty answer, for example one that has only reasoning",
        ),
    )

    def roles(self, spec: LmEvalSpec) -> tuple[Role, ...]:
        return (Role("client", 1),)

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        tasks = config.workload.tasks
        return self.metrics + tuple(
            MetricInfo(
                tag=metric_tag(task),
                name=f"Score of {task}",
                unit="ratio",
                better="higher",
                formula=f"results.{task}",
            )
            for task in (tasks if len(tasks) > 1 else ())
        )

    def problems(self, config: Config) -> list[str]:
        endpoint = config.workload.endpoint
        remedy = f"name the server's key in workload.secret_env: {{{lm_eval.KEY_VARIABLE}: NAME}}"
        problem = url_problem(endpoint.url, remedy=remedy)
        found = [f"workload.url: {problem}"] if problem else []
        for key in endpoint.secrets_in_clear:
            own = key.replace("endpoint.", "workload.", 1)
            found.append(f"{own}: would be kept in plain text in the results; {remedy}")
        return found

    def outside(self, config: Config) -> tuple[OutsideUrl, ...]:
        spec = config.workload
        server = OutsideUrl(spec.url, "an address in workload.url")
        if _OFFLINE in spec.env:
            return (server,)
        return server, OutsideUrl(_HUB, f"{_OFFLINE} in workload.env")

    def files(self, config: Config) -> dict[str, bytes]:
        spec = config.workload
        written = {name: text.encode() for name, text in spec.files.items()}
        settings = lm_eval.settings(spec, spec.endpoint, concurrency=spec.concurrency)
        return written | {SETTINGS_FILE: settings}

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        return (
            Step(
                name=f"lm-eval {' '.join(spec.tasks)}",
                commands=(
                    Command(
                        rank=ranks[0].number,
                        argv=(lm_eval.PROGRAM, *lm_eval.ARGUMENTS),
                        env=spec.env,
                        keeps=(lm_eval.RESULTS, lm_eval.SAMPLES),
                    ),
                ),
                timeout_ns=timeout_of(spec, 4 * HOUR_NS),
            ),
        )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        spec, files = config.workload, outputs[0].files
        results = [data for name, data in files.items() if fnmatch(name, lm_eval.RESULTS)]
        if len(results) != 1:
            raise UnreadableOutput(f"lm_eval left {len(results)} files of results; expected 1")
        try:
            found = lm_eval.read_results(results[0], spec)
            without_text = sum(lm_eval.count_without_text(lines) for lines in _samples(files))
        except ValueError as error:
            raise UnreadableOutput(str(error)) from error
        scores = found.scores
        values = {
            "score": fmean(each.value for each in scores),
            "questions": float(found.questions),
            _WITHOUT_TEXT: float(without_text),
        }
        if len(scores) > 1:
            values |= {metric_tag(each.task): each.value for each in scores}
        return Reading(
            values=values,
            tool=found.tool,
            facts={each.task: each.text for each in scores},
        )

    def checks(self, config: Config, readings: Sequence[Reading]) -> tuple[Reason, ...]:
        limit, found = config.workload.limit, []
        if limit is not None:
            found.append(
                Reason(
                    check="task-limit",
                    severity=Severity.INFO,
                    measured=limit,
                    limit=0.0,
                    unit="questions",
                    text=f"limit {limit:,}: only the first questions of each task were sent",
                    remedy="remove workload.limit before comparing scores",
                )
            )
        empty = sum(int(reading.values[_WITHOUT_TEXT]) for reading in readings)
        if empty:
            found.append(
                Reason(
                    check="answers-without-text",
                    severity=Severity.DEGRADED,
                    measured=empty,
                    limit=0.0,
                    unit="answers",
                    text=f"{count(empty, 'answer')} had no text and counted as wrong",
                    remedy="raise the task's max_gen_toks, or turn reasoning off in "
                    "workload.extra_inputs: lm_eval does not read it",
                )
            )
        return tuple(found)


def _samples(files: dict[str, bytes]) -> Iterator[list[bytes]]:
    for name, data in files.items():
        if fnmatch(name, lm_eval.SAMPLES):
            yield data.splitlines()
