"""The bytes of responses, and the effect of each fault."""

import json

import pytest

from aiperf_svc.mock_server.faults import FAULTS, find_fault
from aiperf_svc.mock_server.replies import (  # type: ignore[attr-defined]
    DONE,
    WORDS,
    Draft,
    Drafts,
    Ending,
    Reply,
    assemble,
    draft_error,
)
from aiperf_svc.mock_server.requests import CHAT, COMPLETIONS, EMBEDDINGS, RequestParams
from tests.support.fake_params import params


def _draft(params: RequestParams, *, role_chunk: bool = False) -> Draft:
    return Drafts(created_s=1, role_chunk=role_chunk, embedding_dimensions=4).draft(params)


def _reply(draft: Draft, *, close: bool = False, early_head: bool = False) -> Reply:
    return assemble(draft, close=close, early_head=early_head)


def _events(reply: Reply) -> list[bytes]:
    """Return the data of each SSE event from the wire bytes."""
    head, _, body = b"".join(reply.writes).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    stream = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        stream, body = stream + body[:length], body[length + 2 :]
        if length == 0:
            assert body == b""
            return [part.removeprefix(b"data: ") for part in stream.split(b"\n\n")[:-1]]


def test_stream_has_one_write_per_token() -> None:
    reply = _reply(_draft(params()))
    assert (reply.count, reply.early, reply.whole) == (3, 0, None)
    events = _events(reply)
    assert events[-1] == b"[DONE]"
    *deltas, finish, usage = [json.loads(event) for event in events[:-1]]
    contents = [delta["choices"][0]["delta"]["content"] for delta in deltas]
    assert contents == [WORDS[0], " " + WORDS[1], " " + WORDS[2]]
    assert deltas[0]["choices"][0]["delta"]["role"] == "assistant"
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def test_early_head_has_the_role_chunk() -> None:
    reply = _reply(_draft(params(), role_chunk=True), early_head=True)
    assert (reply.count, reply.early) == (4, 1)
    assert b'"role":"assistant","content":""' in reply.writes[0]
    assert b'"role"' not in reply.writes[1]


def test_a_stream_of_one_token_is_one_write() -> None:
    reply = _reply(_draft(params(tokens=1)))
    assert reply.whole == reply.writes[0]
    assert reply.whole.endswith(b"0\r\n\r\n")


def test_reasoning_tokens_come_first_and_are_counted() -> None:
    events = [json.loads(event) for event in _events(_reply(_draft(params(reasoning=2))))[:-1]]
    keys = [set(event["choices"][0]["delta"]) - {"role"} for event in events[:3]]
    assert keys == [{"reasoning_content"}, {"reasoning_content"}, {"content"}]
    assert events[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_response_longer_than_the_word_list_wraps_around() -> None:
    reply = _reply(_draft(params(COMPLETIONS, tokens=len(WORDS) + 2)))
    assert reply.count == len(WORDS) + 2
    assert json.loads(_events(reply)[len(WORDS) + 1])["choices"][0]["text"] == " " + WORDS[1]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_whole_response_states_its_length(path: str) -> None:
    reply = _reply(_draft(params(path, is_stream=False)), close=True)
    head, _, body = reply.writes[0].partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Connection: close" in head
    assert reply.ending is Ending.CLOSE
    assert json.loads(body)["usage"]["prompt_tokens"] == 7


def test_every_fault_changes_a_stream() -> None:
    right = _reply(_draft(params()), early_head=True)
    for name, apply_fault in FAULTS.items():
        faulty = _reply(apply_fault(_draft(params())), early_head=True)
        assert (faulty.writes, faulty.ending) != (right.writes, right.ending), name


def test_no_fault_touches_the_responses_of_other_requests() -> None:
    drafts = Drafts(created_s=1, role_chunk=False, embedding_dimensions=4)
    right = _reply(drafts.draft(params())).writes
    for name, apply_fault in FAULTS.items():
        _reply(apply_fault(drafts.draft(params())))
        assert _reply(drafts.draft(params())).writes == right, name


def test_legal_oddities_carry_the_same_content() -> None:
    right = _events(_reply(_draft(params())))
    assert _events(_reply(FAULTS["one-byte-writes"](_draft(params())))) == right
    assert _events(_reply(FAULTS["one-chunk"](_draft(params())))) == right


def test_a_status_is_a_fault_by_its_number() -> None:
    apply_fault = find_fault("error-429")
    assert apply_fault is not None
    assert apply_fault(Draft()).status == 429
    assert find_fault("error-200") is None
    assert find_fault("model") is None


def test_no_done_drops_only_the_done_event() -> None:
    assert FAULTS["no-done"](_draft(params())).tail == _draft(params()).tail[:-1]
    assert _draft(params()).tail[-1] == DONE


def test_an_error_is_json_with_its_status() -> None:
    reply = _reply(draft_error(429, "slow down"))
    head, _, body = reply.writes[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert json.loads(body)["error"]["message"] == "slow down"
