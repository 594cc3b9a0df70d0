"""Agent traces in Weka's format, and the request bodies of the conversations read from them."""

import json
from typing import Any

import numpy as np

from aiperf_svc.protocol.messages.dataset import RESPONSE_PIECE, Conversation


def weka(*requests: dict[str, Any], **members: Any) -> bytes:
    """Return a trace that contains these requests."""
    trace = {"id": "a", "models": ["m"], "block_size": 10, "hash_id_scope": "local"}
    return json.dumps(trace | {"requests": requests} | members).encode()


def call(t: float, ids: list[int], api_time: float = 1.0, **members: Any) -> dict[str, Any]:
    """Return a request whose input is these blocks of ten tokens."""
    tokens = {"in": 10 * len(ids), "out": 5}
    request = {"t": t, "type": "s", "model": "m", "hash_ids": ids, "api_time": api_time}
    return request | tokens | members


def subagent(t: float, *requests: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Return a subagent that sends these requests."""
    return {"t": t, "type": "subagent", "agent_id": "sub", "requests": requests} | members


def body_of(entry: Conversation, number: int) -> dict[str, Any]:
    """Return the body of a request, before live responses are inserted."""
    turn = entry.turns[number]
    numbers = np.frombuffer(turn.pieces, dtype="<u4").tolist()
    assert all(each < RESPONSE_PIECE for each in numbers)
    body: dict[str, Any] = json.loads(b"".join(entry.pieces[each] for each in numbers) + turn.tail)
    return body
