"""The mock server's check of histories: which changes it accepts."""

import json

import pytest

from aiperf_svc.mock_server import histories
from aiperf_svc.mock_server.histories import Histories, decoded
from aiperf_svc.mock_server.requests import MESSAGES

USE = '{"type": "tool_use", "id": "a", "name": "f", "input": %s}'
INPUT = '{"x": 2.50, "y": {"u": 1, "v": "\\u00fc"}}'


def problem(found: Histories, arguments: str, session: str = "s") -> str:
    """Return the problem of a history in which a call has this input."""
    result = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
    users = [json.dumps({"role": "user", "content": each}) for each in ("hi", [result])]
    assistant = f'{{"role": "assistant", "content": [{USE % arguments}]}}'
    body = f'{{"messages": [{users[0]}, {assistant}, {users[1]}]}}'
    return found.problem(session, MESSAGES, decoded(body))


def remembered() -> Histories:
    found = Histories()
    found.add("s", decoded(f"[{USE % INPUT}]"))
    return found


@pytest.mark.parametrize(
    "arguments", [INPUT, INPUT.replace(" ", ""), INPUT.replace("\\u00fc", "ü")]
)
def test_space_and_escapes_are_free(arguments: str) -> None:
    assert problem(remembered(), arguments) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        INPUT.replace("2.50", "2.5"),
        INPUT.replace("2.50", '"2.50"'),
        '{"y": {"u": 1, "v": "ü"}, "x": 2.50}',
        '{"x": 2.50, "y": {"v": "ü", "u": 1}}',
    ],
)
def test_numbers_and_order_are_compared(arguments: str) -> None:
    assert "response 1 was altered" in problem(remembered(), arguments)


def test_form_alone_is_checked_without_a_session() -> None:
    assert problem(Histories(), INPUT, session="") == ""
    assert "is not an object" in problem(Histories(), '"x"', session="")


def test_session_that_paused_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_SESSIONS", 2)
    found = remembered()
    found.add("t", [])
    found.add("s", [])
    found.add("u", [])
    assert "1 responses, and 2 were sent" in problem(found, INPUT)
    assert "1 responses, and 0 were sent" in problem(found, INPUT, session="t")
