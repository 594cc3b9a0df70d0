"""Servers with contradictory responses. A check after the load names each contradiction."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.in_one_loop import config, results_of, talks
from tests.support.scripted_server import served

REQUESTS = 10


def delta(**members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members}]}


def call(number: int, **members: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}" if number == 0 else ""}
    return delta(tool_calls=[{"index": 0, "function": function, **members}])


def usage(prompt: int, cached: int) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": 1} | details}


@pytest.mark.parametrize(
    ("events", "check", "text"),
    [
        ([call(0, id="c1"), call(1, id="c2")], "histories", "whose id changes within the stream"),
        ([call(0, id="c1"), usage(9, 4), usage(12, 4)], "usage_twice", "with different numbers"),
        ([call(0, id="c1"), usage(9, 4), usage(9, 7)], "usage_twice", "with different numbers"),
        ([call(0, id="c1"), usage(9, 10)], "cached_tokens", "more cached tokens than prompt"),
    ],
)
async def test_contradiction_is_named(
    events: list[dict[str, Any]], check: str, text: str, tmp_path: Path
) -> None:
    ending = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    made = [delta(role="assistant", content="a"), *events, ending]
    body = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in made)

    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=body + b"data: [DONE]\n\n", content_type="text/event-stream")

    dataset = talks(
        tmp_path, {"text": "q"}, {"role": "tool", "text": "r", "tool_call_id": "a"}, count=5
    )
    async with served("/v1/chat/completions", respond) as url:
        settings = config(url, dataset=dataset, concurrency=1, requests=REQUESTS)
        settings["endpoint"] |= {"streaming": True}
        summary = await results_of(settings, tmp_path)
    assert summary["request_count"]["avg"] == REQUESTS
    reasons = {each["check"]: each["text"] for each in summary["aiperf_svc"]["reasons"]}
    assert text in reasons[check]
    assert "cached_token_share" not in summary["aiperf_svc"].get("metrics", summary)
