"""Questions of a quality gate over real sockets: the requests, and the handling of failures."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiperf_svc.adapters.inference import quality_requests
from aiperf_svc.adapters.inference.quality_requests import measure_quality, read_gate, tokens_of
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError, DatasetError
from aiperf_svc.services.records_manager import RecordsManager
from benchmarks.stream_server import stream_server
from tests.support.small_configs import small_benchmark

Reply = Callable[[dict[str, Any]], Awaitable[tuple[int, dict[str, Any] | bytes]]]


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[str]:
    """Run a server that answers each body with `reply` and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(x for x in head.lower().split("\r\n") if x.startswith("content-length:"))
        body = json.loads(await reader.readexactly(int(length.partition(":")[2])))
        body["_head"] = head
        status, content = await reply(body)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % status)
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    async with stream_server(serve) as port:
        yield f"http://127.0.0.1:{port}"


def config(url: str, file: Path, **changes: Any) -> BenchmarkConfig:
    endpoint = {"streaming": True, **changes.pop("endpoint", {})}
    load = changes.pop("load", {"concurrency": 3, "requests": 9})
    quality = {"file": str(file), **changes}
    return parse_config(small_benchmark(url, endpoint=endpoint, load=load, quality=quality), "")


def gate(folder: Path, *questions: dict[str, Any]) -> Path:
    path = folder / "gate.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in questions))
    return path


def chat(text: str, **message: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": text, **message}
    return {"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}


SUM = {"prompt": "2 + 2?", "grader": "number", "expected": 4, "max_tokens": 7}


async def test_questions_are_decoded_greedily_and_end_naturally(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        bodies.append(body)
        return 200, chat("4")

    async with serving(reply) as url:
        forced = {"ignore_eos": True, "min_tokens": 200, "top_k": 1}
        benchmark = config(url, gate(tmp_path, SUM), endpoint={"extra_inputs": forced})
        result, answers = await measure_quality(benchmark, "run")
    (body,) = bodies
    assert "x-request-id: run-quality-0-0" in body.pop("_head").lower()
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "max_tokens": 7,
        "temperature": 0,
        "top_k": 1,
    }
    assert (result.score, result.concurrency) == (1.0, 3)
    assert answers[0].is_right


@pytest.mark.parametrize(("configured", "sent"), [(0.6, 0.6), (None, "left out")])
async def test_configured_temperature_replaces_greedy_decoding(
    tmp_path: Path, configured: float | None, sent: float | str
) -> None:
    found: list[Any] = []

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found.append(body.get("temperature", "left out"))
        return 200, chat("4")

    async with serving(reply) as url:
        extra = {"extra_inputs": {"temperature": configured}}
        await measure_quality(config(url, gate(tmp_path, SUM), endpoint=extra), "run")
    assert found == [sent]


async def test_questions_keep_to_the_concurrency_of_the_load(tmp_path: Path) -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1
        return 200, chat("4")

    async with serving(reply) as url:
        result, _ = await measure_quality(config(url, gate(tmp_path, *[SUM] * 10)), "run")
    assert most == 3
    assert result.right == 10


async def test_tools_and_calls_go_through(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    tools: list[Any] = []

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        tools.append(body["tools"])
        call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
        return 200, chat("", tool_calls=[call])

    expected = {"name": "add", "arguments": {"a": 2, "b": 2}}
    question = {
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "tools": [tool],
        "grader": "tool_call",
        "expected": expected,
    }
    async with serving(reply) as url:
        result, _ = await measure_quality(config(url, gate(tmp_path, question)), "run")
    assert tools == [[tool]]
    assert result.right == 1


async def test_question_tools_are_converted_to_the_api(tmp_path: Path) -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    question = SUM | {"tools": [{"type": "function", "function": function}]}
    tools: list[Any] = []

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        tools.append(body["tools"])
        return 200, {"content": [{"type": "text", "text": "4"}], "output": []}

    async with serving(reply) as url:
        for api in ("responses", "messages"):
            benchmark = config(url, gate(tmp_path, question), endpoint={"type": api})
            await measure_quality(benchmark, "run")
    assert tools == [
        [{"type": "function", **function}],
        [{"name": "add", "input_schema": {"type": "object"}}],
    ]


async def test_failures_are_wrong_and_named(tmp_path: Path) -> None:
    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        match body["messages"][0]["content"]:
            case "status":
                return 500, {"error": {"message": "out of memory"}}
            case "error":
                return 200, {"error": {"message": "no such thing"}}
            case _:
                return 200, {"strange": True}

    prompts = ("status", "error", "strange")
    questions = [SUM | {"prompt": prompt} for prompt in prompts]
    async with serving(reply) as url:
        result, answers = await measure_quality(config(url, gate(tmp_path, *questions)), "run")
    assert (result.issued, result.right, result.failed) == (3, 0, 3)
    assert answers[0].error == "status 500: out of memory"
    assert answers[1].error == "no such thing"
    assert answers[2].error


async def test_answer_of_too_many_levels_is_one_failure(tmp_path: Path) -> None:
    async def reply(body: dict[str, Any]) -> tuple[int, bytes | dict[str, Any]]:
        if body["messages"][0]["content"] == "deep":
            return 200, b'{"choices":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        return 200, chat("4")

    file = gate(tmp_path, SUM | {"prompt": "deep"}, SUM)
    async with serving(reply) as url:
        result, answers = await measure_quality(config(url, file), "run")
    assert (result.right, result.failed) == (1, 1)
    assert answers[0].error == "JSON of too many levels"


async def test_answer_with_invalid_numbers_counts(tmp_path: Path) -> None:
    token = {"token": "4", "logprob": -0.5, "top_logprobs": [{"token": "5", "logprob": "NAN"}]}
    whole = chat("4")
    whole["choices"][0]["logprobs"] = {"content": [token]}
    data = json.dumps(whole).replace('"NAN"', "-Infinity").encode()

    async def reply(_: dict[str, Any]) -> tuple[int, bytes]:
        return 200, data

    async with serving(reply) as url:
        benchmark = config(url, gate(tmp_path, SUM), logprobs=True)
        result, answers = await measure_quality(benchmark, "run")
    assert (result.right, result.failed) == (1, 0)
    assert (answers[0].tokens, answers[0].logprobs) == (("4",), (-0.5,))


async def test_answers_after_the_timeout_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over, limits, make_limit = asyncio.Event(), list[asyncio.Timeout](), asyncio.timeout

    def limit(seconds: float) -> asyncio.Timeout:
        limits.append(make_limit(seconds))
        return limits[-1]

    # The timeout expires when the other question has its answer, however busy the machine is.
    monkeypatch.setattr(asyncio, "timeout", limit)
    ask = quality_requests._ask

    async def ask_first(*arguments: Any) -> Any:
        answer = await ask(*arguments)
        limits[0].reschedule(0)
        return answer

    monkeypatch.setattr(quality_requests, "_ask", ask_first)

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body["messages"][0]["content"] == "slow":
            await is_over.wait()
        return 200, chat("4")

    file = gate(tmp_path, SUM, SUM | {"prompt": "slow"})
    async with serving(reply) as url:
        result, answers = await measure_quality(config(url, file, timeout="1h"), "run")
        is_over.set()
    assert (result.issued, result.right, result.failed) == (2, 1, 1)
    assert answers[1].error == "no answer within quality.timeout"


@pytest.mark.parametrize(
    ("questions", "changes", "text"),
    [
        ([SUM | {"expected": None}], {}, "gate.jsonl:1: `grader` number needs `expected`"),
        ([{"prompt": "?"}], {"min_score": "90%"}, "quality.min_score: no question of"),
        (
            [{"messages": [{"role": "user", "content": "?"}]}],
            {"endpoint": {"type": "completions"}},
            "question 1: messages need endpoint.type: chat",
        ),
    ],
)
def test_wrong_files_are_refused(
    questions: list[dict[str, Any]], changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as caught:
        read_gate(config("http://h", gate(tmp_path, *questions), **changes))
    assert text in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"quality\.file: .*none\.jsonl: No such file"):
        read_gate(config("http://h", tmp_path / "none.jsonl"))


async def test_missing_file_ends_configuring(tmp_path: Path) -> None:
    missing = config("http://127.0.0.1:1", tmp_path / "none.jsonl")
    manager = SimpleNamespace(context=SimpleNamespace(inference=missing))
    with pytest.raises(DatasetError, match=r"^quality\.file: .*none\.jsonl: No such file"):
        await RecordsManager._configure(cast(RecordsManager, manager))


async def test_tokens_are_kept_on_request(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    async def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        bodies.append(body)
        content = [{"token": "4", "logprob": -0.25, "bytes": [52], "top_logprobs": []}]
        found = chat("4")
        if len(bodies) == 1:
            found["choices"][0]["logprobs"] = {"content": content}
        return 200, found

    async with serving(reply) as url:
        benchmark = config(url, gate(tmp_path, SUM), repeats=2, logprobs=True)
        result, answers = await measure_quality(benchmark, "run")
    assert [body["logprobs"] for body in bodies] == [True, True]
    assert {(each.tokens, each.logprobs) for each in answers} == {(("4",), (-0.25,)), ((), ())}
    assert result.without_tokens == 1


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        (
            {"tokens": ["4", " ."], "token_logprobs": [None, -1.5], "top_logprobs": [{}, {}]},
            ((" .",), (-1.5,)),
        ),
        ({"content": None}, ((), ())),
        (None, ((), ())),
    ],
)
def test_tokens_of_completions_have_another_shape(logprobs: Any, expected: Any) -> None:
    body = json.dumps({"choices": [{"text": "4.", "logprobs": logprobs}]}).encode()
    assert tokens_of(body) == expected


def test_tokens_need_an_api_that_states_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quality\.logprobs needs endpoint\.type chat or compl"):
        config("http://t:1", tmp_path / "q", logprobs=True, endpoint={"type": "messages"})
