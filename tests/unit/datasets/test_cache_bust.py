"""Markers that prevent prefix-cache hits: their place, and exact token counts."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.assembly import Source, assemble, synthetic_prompts
from aiperf_svc.core.datasets.base import PromptConversation, PromptTurn
from aiperf_svc.core.datasets.cache_bust import marker_of, run_markers, with_markers
from aiperf_svc.core.endpoints.base import Prompt
from tests.support.small_configs import small_config

Config = Callable[..., BenchmarkConfig]
MARKER = marker_of(0, 0)
USER, SYSTEM = {"role": "user", "content": "u"}, {"role": "system", "content": "s"}


def settings(**dataset: Any) -> BenchmarkConfig:
    return small_config(dataset=dataset)


def marked(prompt: Prompt, target: str) -> Prompt:
    entry = PromptConversation("a", (PromptTurn(prompt), PromptTurn(Prompt(texts=("later",)))))
    (found,) = with_markers([entry], [0], settings(cache_bust=target), None)
    assert found.turns[1] == entry.turns[1]
    return found.turns[0].prompt


@pytest.mark.parametrize(
    ("target", "system", "text"),
    [
        ("none", "s", "u"),
        ("system_prefix", f"{MARKER}\n\ns", "u"),
        ("system_suffix", f"s\n\n{MARKER}", "u"),
        ("first_turn_prefix", "s", f"{MARKER}\n\nu"),
        ("first_turn_suffix", "s", f"u\n\n{MARKER}"),
    ],
)
def test_marker_is_inserted_where_configured(target: str, system: str, text: str) -> None:
    made = marked(Prompt(texts=("u",), system="s"), target)
    assert (made.system, made.texts) == (system, (text,))
    for prompt in (
        Prompt(messages=(SYSTEM, USER)),
        Prompt(payload={"messages": [SYSTEM, USER], "n": 1}),
    ):
        made = marked(prompt, target)
        messages = made.messages or (made.payload or {})["messages"]
        assert [message["content"] for message in messages] == [system, text]


@pytest.mark.parametrize("payload", [{"prompt": "u"}, {"input": ["u", "v"]}, {"inputs": "u"}])
def test_payloads_of_other_apis_are_marked(payload: dict[str, Any]) -> None:
    made = marked(Prompt(payload=payload), "first_turn_prefix").payload
    assert json.dumps(made).replace(MARKER + r"\n\n", "") == json.dumps(payload)
    assert made != payload


def test_first_turn_is_marked_without_system_prompt() -> None:
    assert marked(Prompt(texts=("u",)), "system_prefix").texts == (f"{MARKER}\n\nu",)
    parts = {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "u"}]}
    (message,) = marked(Prompt(messages=(parts,)), "system_suffix").messages
    assert message["content"][1]["text"] == f"{MARKER}\n\nu"
    assert marked(Prompt(texts=("u",)), "system_suffix").texts == (f"{MARKER}\n\nu",)
    payload = marked(Prompt(payload={"prompt": "u"}), "system_suffix").payload
    assert payload == {"prompt": f"{MARKER}\n\nu"}


def test_complete_turns_of_a_session_share_its_marker() -> None:
    turns = (
        PromptTurn(Prompt(messages=(SYSTEM, USER)), is_whole=True),
        PromptTurn(Prompt(payload={"messages": [SYSTEM, USER, SYSTEM, USER]}), is_whole=True),
    )
    config = settings(cache_bust="first_turn_prefix")
    (found,) = with_markers([PromptConversation("a", turns)], [0], config, None)
    first, second = (turn.prompt for turn in found.turns)
    assert [each["content"] for each in first.messages] == ["s", f"{MARKER}\n\nu"]
    assert second.payload is not None
    contents = [each["content"] for each in second.payload["messages"]]
    assert contents == ["s", f"{MARKER}\n\nu", "s", "u"]


def test_every_entry_has_its_own_seeded_marker() -> None:
    found = {marker_of(seed, number) for seed in range(3) for number in range(1_000)}
    assert len(found) == 3_000
    assert marker_of(1, 2) == marker_of(1, 2)
    assert all(re.fullmatch(r"\[[0-9a-f]{16}\]", marker) for marker in found)


def test_shared_system_prompt_becomes_unique_with_exact_tokens(
    config: Config, counter: LibraryTokenCounter
) -> None:
    dataset = {
        "entries": 20,
        "cache_bust": "system_prefix",
        "input_tokens": {"mean": 30},
        "prefix": {"system_tokens": 50},
    }
    benchmark = config(dataset=dataset)
    prompts = synthetic_prompts(benchmark, counter)
    built = assemble(benchmark, prompts, Source("x"), counter)
    systems = set()
    for entry in built.conversations:
        (turn,) = entry.turns
        system, user = json.loads(turn.messages)["messages"]
        systems.add(system["content"])
        counts = counter.count_batch([system["content"], user["content"]])
        assert turn.input_tokens == sum(counts)
    assert len(systems) == 20


def test_delays_are_multiplied(config: Config) -> None:
    dataset = {
        "entries": 2,
        "input_tokens": {"mean": 3},
        "turns": {"number": {"mean": 2}, "delay_ms": {"mean": 100}},
    }
    for factor, expected in ((1, 100_000_000), (0.25, 25_000_000), (0, 0)):
        benchmark = config(dataset=dataset | {"delay_factor": factor})
        built = assemble(benchmark, synthetic_prompts(benchmark, None), Source("x"), None)
        assert {entry.turns[1].delay_ns for entry in built.conversations} == {expected}


def sent(per: str, phase: int, index: int, turn: int = 0) -> str:
    config = settings(cache_bust="first_turn_prefix", cache_bust_per=per)
    entry = PromptConversation("a", (PromptTurn(Prompt(texts=("u",))),))
    markers = run_markers(config)
    assert markers is not None
    (found,) = with_markers([entry], [0], config, None)
    text = found.turns[0].prompt.texts[0].encode()
    made = markers.marked(text, phase, index, turn)
    assert len(made) == len(text)
    return made.decode()


def test_request_has_64_bits_of_seed_and_credit() -> None:
    places = [(p, i, t) for p in range(2) for i in range(20) for t in range(20)]
    found = {sent("request", *place) for place in places}
    assert len(found) == len(places)
    assert all(re.fullmatch(r"\[[0-9a-f]{16}\]\n\nu", text) for text in found)
    assert sent("request", 1, 5, 2) == sent("request", 1, 5, 2)


def test_turns_of_a_conversation_share_their_marker() -> None:
    assert re.fullmatch(r"\[rid:[0-9a-f]{12}\]\n\nu", sent("conversation", 1, 5))
    assert sent("conversation", 1, 5, 0) == sent("conversation", 1, 5, 7)
    assert sent("conversation", 1, 5) != sent("conversation", 1, 6)
    assert sent("conversation", 0, 5) != sent("conversation", 1, 5)


def test_tree_keeps_its_marker_from_the_warmup(config: Config) -> None:
    dataset = {"kind": "weka_trace", "file": "f", "cache_bust": "first_turn_prefix"}
    load = {"concurrency": 1, "requests": 9, "agentic": {}}
    markers = run_markers(config(dataset=dataset | {"cache_bust_per": "conversation"}, load=load))
    assert markers is not None
    place = markers.placeholder.encode()
    warmup, first, later = (
        markers.marked(place, phase, 5, turn) for phase, turn in ((0, 3), (1, 4), (1, 9))
    )
    assert warmup == first == later
    assert markers.marked(place, 1, 6, 0) != first


def test_entries_have_no_markers_of_the_run() -> None:
    assert run_markers(settings(cache_bust="first_turn_prefix")) is None
    assert run_markers(settings()) is None
