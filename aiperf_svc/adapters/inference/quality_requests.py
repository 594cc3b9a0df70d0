"""Asks the questions of a quality gate at the concurrency of the load, each on its own connection.
Decoding is greedy unless the config sets a temperature, and responses are not cut."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from aiperf_svc.adapters.inference.resolved_target import Target, config_at_url, resolve_target
from aiperf_svc.adapters.inference.side_requests import ask_with_body
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.quality import Quality
from aiperf_svc.config.user_files import read_file
from aiperf_svc.core.endpoints.base import MalformedResponse, Prompt, error_message, parse_odd
from aiperf_svc.core.endpoints.history import decode_valid
from aiperf_svc.core.endpoints.registry import CONVERSATIONS, endpoint_of
from aiperf_svc.core.quality.gate import Answer, QualityResult, graded, score
from aiperf_svc.core.quality.questions import Question, read_questions
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.domain.endpoint_types import EndpointType
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.foreign_text import one_line

OPEN_LOOP_CONCURRENCY = 16
"""Concurrency after a load without a number of users."""
MAX_BYTES = 256 * 2**20
"""Maximum size of a file of questions."""
_GREEDY = {"temperature": 0}


class Gate(NamedTuple):
    questions: list[Question]
    sha256: str


def read_gate(config: BenchmarkConfig) -> Gate:
    """Read and check the questions of a config with a quality gate. Raises DatasetError with the
    file and line, or the key."""
    quality = config.quality
    assert quality is not None
    assert quality.file is not None
    path = Path(quality.file)
    try:
        content = read_file(path, MAX_BYTES)
        questions = read_questions(content.splitlines(), str(path))
    except OSError as error:
        raise DatasetError(f"quality.file: {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DatasetError(one_line(str(error))) from error
    if quality.min_score is not None and all(each.grader is None for each in questions):
        raise DatasetError(
            f"quality.min_score: no question of {path} has a `grader`, so there is no score"
        )
    for number, question in enumerate(questions, start=1):
        try:
            _body(config, question)
        except ValueError as error:
            raise DatasetError(f"quality.file: {path}: question {number}: {error}") from error
    return Gate(questions, hashlib.sha256(content).hexdigest())


def check_gate(config: BenchmarkConfig) -> None:
    """Read the questions of a config, if it has a file of them: the records manager may see another
    file than the user. Raises DatasetError like `read_gate`."""
    if config.quality is not None and config.quality.file is not None:
        read_gate(config)


async def measure_quality(
    config: BenchmarkConfig, run_id: str
) -> tuple[QualityResult, list[Answer]]:
    """Ask the questions of the config's quality gate and grade the answers. Raises DatasetError."""
    quality = config.quality
    assert quality is not None
    # A complete response, from the path for requests that do not stream.
    plain = config.endpoint.model_copy(update={"streaming": False})
    config = config.model_copy(update={"endpoint": plain})
    gate = await asyncio.to_thread(read_gate, config)
    users = gate_concurrency(config)
    answers = await _ask_all(config, quality, gate.questions, users, run_id)
    answers = await asyncio.to_thread(graded, gate.questions, answers)
    result = score(
        [str(each.grader) for each in gate.questions],
        answers,
        file=quality.source,
        sha256=gate.sha256,
        concurrency=users,
        min_score=quality.min_score,
        wants_tokens=quality.logprobs,
    )
    return result, answers


def gate_concurrency(config: BenchmarkConfig) -> int:
    """Return the number of questions that are asked concurrently."""
    load = config.load
    return OPEN_LOOP_CONCURRENCY if load.is_open_loop else load.concurrency or 1


async def _ask_all(
    config: BenchmarkConfig,
    quality: Quality,
    questions: Sequence[Question],
    users: int,
    run_id: str,
) -> list[Answer]:
    urls = config.endpoint.all_urls
    targets = [await asyncio.to_thread(resolve_target, config_at_url(config, url)) for url in urls]
    due = [(n, repeat) for repeat in range(quality.repeats) for n in range(len(questions))]
    answers: dict[tuple[int, int], Answer] = {}
    rest = iter(enumerate(due))

    async def user() -> None:
        for place, (number, repeat) in rest:
            target = targets[place % len(targets)]
            request_id = f"{run_id}-quality-{number}-{repeat}"
            empty = Answer(question=number, repeat=repeat)
            answers[number, repeat] = await _ask(
                config, target, questions[number], empty, request_id
            )

    try:
        async with asyncio.timeout(quality.timeout / 1e9), asyncio.TaskGroup() as group:
            for place in range(min(users, len(due))):
                group.create_task(user(), name=f"quality-{place}")
    except TimeoutError:
        pass
    late = "no answer within quality.timeout"
    return [
        answers.get(each) or Answer(question=each[0], repeat=each[1], error=late) for each in due
    ]


async def _ask(
    config: BenchmarkConfig, target: Target, question: Question, empty: Answer, request_id: str
) -> Answer:
    endpoint = endpoint_of(config.endpoint)
    request_body = _body(config, question)
    begun = monotonic()
    try:
        status, body = await ask_with_body(
            target, request_body, request_id, timeout_s=config.endpoint.request_timeout / 1e9
        )
        if status >= 300:
            return replace(empty, error=one_line(f"status {status}: {error_message(body)}"))
        delta = parse_odd(endpoint.parse_body, body)
    except OSError as error:
        return replace(empty, error=one_line(error.strerror or str(error)))
    except (ProtocolViolation, MalformedResponse) as error:
        return replace(empty, error=one_line(str(error)))
    if delta.error:
        return replace(empty, error=one_line(delta.error))
    quality = config.quality
    tokens, logprobs = tokens_of(body) if quality is not None and quality.logprobs else ((), ())
    return replace(
        empty,
        tokens=tokens,
        logprobs=logprobs,
        text=delta.content,
        reasoning=delta.reasoning,
        tool_calls=delta.tool_calls,
        finish_reason=delta.finish_reason,
        latency_ms=(monotonic() - begun) * 1e3,
    )


def _body(config: BenchmarkConfig, question: Question) -> bytes:
    """Return the body of a question's request. Raises ValueError if the API does not support it."""
    options = config.endpoint
    extra = _GREEDY | options.natural_inputs
    if config.quality is not None and config.quality.logprobs:
        # Completions take the number of alternatives, chat completions a boolean.
        extra = extra | {"logprobs": True if options.type is EndpointType.CHAT else 1}
    if question.tools:
        api = CONVERSATIONS.get(options.type)
        tools = list(question.tools) if api is None else api.render_tools(question.tools)
        extra = extra | {"tools": tools}
    plain = options.model_copy(
        update={"streaming": False, "force_output_length": False, "extra_inputs": extra}
    )
    texts = () if question.prompt is None else (question.prompt,)
    prompt = Prompt(texts=texts, messages=question.messages, output_tokens=question.max_tokens)
    return endpoint_of(plain).render(prompt, plain).whole


class _ChatToken(msgspec.Struct):
    token: str
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_ChatToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Answered(msgspec.Struct):
    choices: list[_Choice]


_decode_answered = msgspec.json.Decoder(_Answered).decode


def tokens_of(body: bytes) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the tokens of the first choice of a completions or chat response with their log
    probabilities; empty if the response has none."""
    try:
        choices = decode_valid(_decode_answered, body).choices
    except MalformedResponse:
        return (), ()
    found = choices[0].logprobs if choices else None
    if found is None:
        return (), ()
    if found.content is not None:
        pairs = [(each.token, each.logprob) for each in found.content]
    else:
        stated = zip(found.tokens or (), found.token_logprobs or (), strict=False)
        pairs = [(token, logprob) for token, logprob in stated if logprob is not None]
    return tuple(token for token, _ in pairs), tuple(logprob for _, logprob in pairs)
