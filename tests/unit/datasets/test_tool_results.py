"""Tool results for which a dataset has neither text nor delay."""

from typing import Any

import pytest

from aiperf_svc.core.datasets import multi_turn
from aiperf_svc.core.datasets.assembly import Source, assemble
from aiperf_svc.core.datasets.base import MS_NS
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import Turn
from tests.support.small_configs import small_config

TALK = b"""{"turns": [{"text": "a"},
 {"role": "assistant", "text": "x", "tool_calls": [
  {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
  {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
 {"role": "tool", "tool_call_id": "c1", "tokens": 7},
 {"role": "tool", "tool_call_id": "c2"},
 {"role": "assistant", "text": "y"},
 {"text": "b", "delay": 30}]}""".replace(b"\n", b" ")


def built(*lines: bytes, tools: bool = False, **dataset: Any) -> BuiltDataset:
    config = small_config(
        endpoint={"extra_inputs": {"tools": [{}]} if tools else {}},
        dataset={"kind": "multi_turn", "file": "f"} | dataset,
    )
    entries, _ = multi_turn.parse(enumerate(lines, start=1), "f")
    return assemble(config, entries, Source("f"), None)


def turns(line: bytes = TALK, *, tools: bool = False, **dataset: Any) -> list[tuple[Turn, ...]]:
    return [each.turns for each in built(line, line, tools=tools, **dataset).conversations]


def words(text: bytes) -> int:
    return len(text.split())


def test_results_have_the_stated_or_a_drawn_length() -> None:
    first, second = turns(tool_results={"tokens": {"mean": 20, "stddev": 5}})
    stated, drawn = first[1].tool_results
    assert words(stated) == 7
    assert 5 <= words(drawn) <= 40
    assert first[1].tool_results != second[1].tool_results
    assert first[1].messages == b""
    assert turns(tool_results={"tokens": {"mean": 20, "stddev": 5}})[0] == first


def test_unstated_result_delay_is_drawn() -> None:
    (first, *_) = turns(tool_results={"delay_ms": {"mean": 800}})
    assert [turn.delay_ns for turn in first] == [0, 800 * MS_NS, 30 * MS_NS]
    for delay in (5, 0):
        stated = TALK.replace(b'"tokens": 7', b'"tokens": 7, "delay": %d' % delay)
        (first, *_) = turns(stated, tool_results={"delay_ms": {"mean": 800}})
        assert first[1].delay_ns == delay * MS_NS


def test_recorded_history_has_results_in_its_messages() -> None:
    (first, *_) = turns(history="recorded")
    assert first[0].recorded.startswith(b'{"role":"assistant","content":"x","tool_calls"')
    assert first[1].messages.count(b'"role":"tool"') == 2
    assert first[1].tool_results == ()
    assert first[2].recorded == b""


@pytest.mark.parametrize(("old", "new"), [(b'"x"', b'"z"'), (b'"tokens": 7', b'"text": "z"')])
def test_responses_and_results_are_part_of_checksums(old: bytes, new: bytes) -> None:
    history = "recorded" if old == b'"x"' else "live"
    other = TALK.replace(old, new)
    one, two = (built(line, line, history=history).report for line in (TALK, other))
    assert one.sha256 != two.sha256
    assert built(TALK, other, history=history).report.distinct_entries == 2


def test_offered_tools_have_a_spare_result() -> None:
    plain, offered = turns()[0], turns(tools=True)[0]
    assert [bool(turn.spare_result) for turn in plain] == [False, False, False]
    assert [bool(turn.spare_result) for turn in offered] == [False, False, True]


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        (b'"tokens": 7', b'"tokens": 0', "`tokens` 0 is not between"),
        (b'"tokens": 7', b'"tokens": 7, "text": "x"', "both `text` and `tokens`"),
        (b'"tool_call_id": "c1", ', b"", "no `tool_call_id`"),
        (b'"id": "c1", ', b"", "has no `id`"),
        (b'"arguments": "{}"', b'"arguments": "{"', "`arguments` that are not JSON"),
        (b'{"role": "assistant", "text": "y"},', b"", None),
    ],
)
def test_bad_tool_turns_are_named(old: bytes, new: bytes, wrong: str | None) -> None:
    line = TALK.replace(old, new, 1)
    if wrong is None:
        # A user's turn directly after the results is part of their request.
        assert [len(each) for each in turns(line)] == [2, 2]
        return
    with pytest.raises(DatasetError, match=f"f:1: .*{wrong}"):
        turns(line)


def test_call_may_have_no_arguments() -> None:
    line = TALK.replace(b'"arguments": "{}"', b'"arguments": ""')
    (first, *_) = turns(line, history="recorded")
    assert first[0].recorded.count(b'"arguments":""') == 2


def test_recorded_history_needs_all_responses() -> None:
    line = b'{"turns": ["a", "b", {"role": "assistant", "text": "x"}, "c"]}'
    with pytest.raises(DatasetError, match="f:1: turn 1 has no recorded response"):
        turns(line, history="recorded")
