"""From prompts to served bytes: warmup share, order, lengths, counts, blocks, inputs.json."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.adapters.exports.inference_file import dataset_json
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.assembly import Source, assemble, synthetic_prompts
from aiperf_svc.core.datasets.base import PromptConversation, PromptTurn, TokenCounter
from aiperf_svc.core.datasets.built import BuiltDataset, entry_bytes
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.core.lines.request_line import Inputs
from aiperf_svc.core.results.inference_result import DatasetFacts
from aiperf_svc.domain.errors import ConfigError, DatasetError
from aiperf_svc.protocol.messages.reports import DatasetReport, ForcedLengthReport
from tests.support.small_configs import small_config

Config = Callable[..., BenchmarkConfig]
FILE = {"kind": "single_turn", "file": "f"}


def prompts(count: int, **turn: Any) -> list[PromptConversation]:
    return [
        PromptConversation(
            f"s{i}", (PromptTurn(Prompt(texts=(f"prompt {i}",)), **turn),), place=f"f:{i + 1}"
        )
        for i in range(count)
    ]


def dialogue(*texts: str) -> PromptConversation:
    return PromptConversation(
        "d", tuple(PromptTurn(Prompt(texts=(t,)), response="A") for t in texts)
    )


def built(
    config: BenchmarkConfig,
    conversations: list[PromptConversation],
    counter: TokenCounter | None = None,
) -> BuiltDataset:
    return assemble(config, conversations, Source("f", sha256="ab", left_out=1), counter)


def ids(dataset: BuiltDataset) -> list[str]:
    return [entry.id for entry in dataset.conversations]


def sent(dataset: BuiltDataset, entry: int = 0) -> dict[str, Any]:
    return json.loads(dataset.conversations[entry].turns[0].messages)


# --- warmup and order ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "requests", "kept"), [(100, 5, 5), (100, 50, 10), (5, 3, 1), (2, 9, 1), (1, 9, 0)]
)
def test_warmup_gets_at_most_a_tenth_of_file(
    config: Config, total: int, requests: int, kept: int
) -> None:
    benchmark = config(dataset=FILE, load={"warmup": {"requests": requests}})
    assert built(benchmark, prompts(total)).warmup_entries == kept


def test_all_entries_are_for_profiling_without_warmup(config: Config) -> None:
    assert built(config(dataset=FILE), prompts(50)).warmup_entries == 0


@pytest.mark.parametrize(
    ("warmup", "extra"), [({"requests": 3}, 3), ({"requests": 99}, 10), ({"duration": "5s"}, 10)]
)
def test_synthetic_warmup_has_separate_entries(
    config: Config, warmup: dict[str, Any], extra: int
) -> None:
    dataset = {"entries": 10, "input_tokens": {"mean": 5}}
    cold, warm = config(dataset=dataset), config(dataset=dataset, load={"warmup": warmup})
    with_warmup = built(warm, synthetic_prompts(warm, None))
    without = built(cold, synthetic_prompts(cold, None))
    assert with_warmup.warmup_entries == extra
    assert len(with_warmup.conversations) == 10 + extra
    assert with_warmup.conversations[:10] == without.conversations


@pytest.mark.parametrize(
    ("load", "dataset", "models", "count"),
    [
        ({"requests": 5}, {}, 1, 5),
        ({"requests": 5}, {"order": "shuffled"}, 1, 5),
        ({"requests": 5, "warmup": {"requests": 7}}, {}, 1, 12),
        ({"requests": 5_000}, {}, 1, 1_000),
        ({"duration": "5s"}, {}, 1, 1_000),
        ({"requests": 5}, {"order": "random"}, 1, 1_000),
        ({"requests": 5}, {}, 2, 1_000),
        ({"requests": 5}, {"entries": 50}, 1, 50),
    ],
)
def test_only_prompts_that_can_be_sent_are_made(
    load: dict[str, Any], dataset: dict[str, Any], models: int, count: int
) -> None:
    benchmark = small_config(
        endpoint={"models": ["b", "c"][: models - 1]},
        load={"concurrency": 1, **load},
        dataset={"input_tokens": {"mean": 1}, **dataset},
    )
    made = built(benchmark, synthetic_prompts(benchmark, None))
    assert len(made.conversations) == count


def test_shuffled_order_follows_seed_and_spares_warmup(config: Config) -> None:
    shuffled, warmup = FILE | {"order": "shuffled"}, {"warmup": {"requests": 2}}
    orders = [
        ids(built(config(dataset=shuffled, load=warmup, random_seed=seed), prompts(40)))
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:38] != [f"s{i}" for i in range(38)]
    assert sorted(orders[0]) == sorted(f"s{i}" for i in range(40))
    assert all(order[38:] == ["s38", "s39"] for order in orders)


def test_sequential_order_is_that_of_the_file(config: Config) -> None:
    assert ids(built(config(dataset=FILE), prompts(5))) == ["s0", "s1", "s2", "s3", "s4"]


# --- lengths and counts --------------------------------------------------------------------------


def test_output_lengths_missing_in_file_are_drawn(config: Config) -> None:
    own = PromptConversation("own", (PromptTurn(Prompt(texts=("x",), output_tokens=3)),))
    benchmark = config(dataset=FILE | {"output_tokens": {"mean": 20, "stddev": 5}})
    dataset = built(benchmark, [own, *prompts(50)])
    lengths = [sent(dataset, i)["max_tokens"] for i in range(51)]
    assert lengths[0] == 3
    assert len(set(lengths[1:])) > 5
    tokens = dataset.report.output_tokens
    assert tokens is not None
    assert tokens.count == 51


def test_no_output_length_is_sent_unless_requested(config: Config) -> None:
    dataset = built(config(dataset=FILE), prompts(1))
    assert "max_tokens" not in sent(dataset)
    assert dataset.report.output_tokens is None


def test_tokenizer_counts_output_lengths_from_file_responses(
    config: Config, counter: LibraryTokenCounter
) -> None:
    response = "The statement is a sequence of expressions."
    benchmark = config(dataset=FILE | {"output_tokens": {"mean": 1000}})
    assert sent(built(benchmark, prompts(1, response=response)))["max_tokens"] == 1000
    with_counter = built(benchmark, prompts(1, response=response), counter)
    assert sent(with_counter)["max_tokens"] == counter.count(response)


def test_input_tokens_count_exactly_the_prompt_text(
    config: Config, counter: LibraryTokenCounter
) -> None:
    parts = [{"type": "text", "text": "the list"}, {"type": "other", "url": "http://x"}]
    conversations = [
        Prompt(texts=("the list", "of names")),
        Prompt(messages=({"role": "system", "content": "of names"}, {"role": "u", "content": 5})),
        Prompt(messages=({"role": "user", "content": parts},)),
        Prompt(payload={"messages": [{"role": "user", "content": "the list"}]}),
        Prompt(texts=("the list",), system="of names"),
    ]
    entries = [PromptConversation("x", (PromptTurn(prompt),)) for prompt in conversations]
    dataset = built(config(dataset=FILE), entries, counter)
    a, b = counter.count("the list"), counter.count("of names")
    counted = [entry.turns[0].input_tokens for entry in dataset.conversations]
    # JSON allows 5 here but no API does: a token id, used for counting.
    assert counted == [a + b, b + 1, a, a, a + b]


def test_token_ids_of_a_payload_count_one_each(
    config: Config, counter: LibraryTokenCounter
) -> None:
    entry = PromptConversation("x", (PromptTurn(Prompt(payload={"prompt": [5, 6, 7]})),))
    benchmark = config(dataset=FILE, endpoint={"type": "completions"})
    assert built(benchmark, [entry], counter).conversations[0].turns[0].input_tokens == 3


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("messages", {"system": "of names", "messages": [{"role": "user", "content": "the list"}]}),
        (
            "messages",
            {
                "system": [{"type": "text", "text": "of names"}],
                "messages": [{"role": "user", "content": "the list"}],
            },
        ),
        ("responses", {"instructions": "of names", "input": "the list"}),
    ],
)
def test_the_system_prompt_of_a_payload_is_counted(
    config: Config, counter: LibraryTokenCounter, kind: str, payload: dict[str, Any]
) -> None:
    entry = PromptConversation("x", (PromptTurn(Prompt(payload=payload)),))
    benchmark = config(dataset=FILE, endpoint={"type": kind})
    (conversation,) = built(benchmark, [entry], counter).conversations
    expected = counter.count("the list") + counter.count("of names")
    assert conversation.turns[0].input_tokens == expected


def test_input_tokens_of_a_raw_payload_are_unknown(
    config: Config, counter: LibraryTokenCounter
) -> None:
    entry = PromptConversation("x", (PromptTurn(Prompt(payload={"prompt": "the list"})),))
    (conversation,) = built(
        config(dataset=FILE, endpoint={"type": "raw"}), [entry], counter
    ).conversations
    assert conversation.turns[0].input_tokens == -1


def test_input_tokens_are_unknown_without_a_tokenizer(config: Config) -> None:
    dataset = built(config(dataset=FILE), prompts(2))
    assert [entry.turns[0].input_tokens for entry in dataset.conversations] == [-1, -1]
    assert dataset.report.input_tokens is None


def test_input_tokens_are_left_to_the_servers_usage(
    config: Config, counter: LibraryTokenCounter
) -> None:
    benchmark = config(dataset=FILE, endpoint={"use_server_token_count": True})
    dataset = built(benchmark, prompts(2), counter)
    assert [entry.turns[0].input_tokens for entry in dataset.conversations] == [-1, -1]
    assert dataset.report.input_tokens is not None


# --- bytes ---------------------------------------------------------------------------------------


def test_a_single_turn_is_one_piece(config: Config) -> None:
    (entry,) = built(config(dataset=FILE), prompts(1)).conversations
    assert (entry.head, entry.turns[0].tail) == (b"", b"")
    assert json.loads(entry.turns[0].messages)["messages"][0]["content"] == "prompt 0"


def test_a_conversation_is_cut_where_its_history_goes(config: Config) -> None:
    (entry,) = built(config(dataset=FILE), [dialogue("a", "b")]).conversations
    assert [json.loads(turn.messages)["content"] for turn in entry.turns] == ["a", "b"]
    for turn in entry.turns:
        assert json.loads(entry.head + turn.messages + turn.tail)["model"] == "m"


def test_unsupported_prompt_is_named_by_its_place(config: Config) -> None:
    bad = PromptConversation("x", (PromptTurn(Prompt(messages=({"role": "u"},))),), place="f:9")
    with pytest.raises(DatasetError, match=r"^f:9: messages need endpoint\.type: chat"):
        built(config(dataset=FILE, endpoint={"type": "completions"}), [bad])


def test_contradicting_extra_inputs_are_refused(config: Config) -> None:
    benchmark = config(dataset=FILE, endpoint={"extra_inputs": {"stream": True, "messages": []}})
    with pytest.raises(ConfigError, match=r"extra_inputs\.stream.*; .*extra_inputs\.messages"):
        built(benchmark, prompts(1))


def test_an_empty_file_is_refused(config: Config) -> None:
    with pytest.raises(DatasetError, match=r"^f: no entries"):
        built(config(dataset=FILE), [])


def as_shown(report: DatasetReport) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(dataset_json(DatasetFacts.of(report)))
    return shown


def test_report_describes_the_dataset(config: Config, counter: LibraryTokenCounter) -> None:
    dataset = built(config(dataset=FILE), [*prompts(2), *prompts(1)], counter)
    shown = as_shown(dataset.report)
    tokens = dataset.report.input_tokens
    assert tokens is not None
    assert shown == {
        "kind": "single_turn",
        "source": "f",
        "source_sha256": "ab",
        "sha256": dataset.report.sha256,
        "entries": 3,
        "distinct_entries": 2,
        "turns": 3,
        "left_out": 1,
        "bytes": sum(map(entry_bytes, dataset.conversations)),
        "tokenizer": "tiny",
        "input_tokens": {
            "avg": tokens.avg,
            "std": tokens.std,
            "min": tokens.min,
            "max": tokens.max,
            "count": 3,
            "sum": tokens.sum,
        },
        "output_tokens": None,
        "warmup_entries": 0,
    }


def test_report_describes_how_the_target_forces_lengths(config: Config) -> None:
    report = built(config(dataset=FILE), prompts(1)).report
    requested = msgspec.structs.replace(
        report, forced_output_length=ForcedLengthReport("refused", "ignore_eos?", 2)
    )
    expected = {
        "forced_output_length": {"finding": "refused", "said": "ignore_eos?", "requests": 2}
    }
    assert as_shown(requested) == as_shown(report) | expected


def test_the_hash_changes_with_any_request(config: Config) -> None:
    benchmark = config(dataset=FILE)
    hashes = [built(benchmark, prompts(n)).report.sha256 for n in (3, 3, 4)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_shape_lists_turns_only_for_conversations(config: Config) -> None:
    assert built(config(dataset=FILE), prompts(3)).turns == b""
    mixed = built(config(dataset=FILE), [*prompts(1), dialogue("a", "b", "c")])
    assert np.frombuffer(mixed.turns, "<u2").tolist() == [1, 3]


def test_blocks_hold_entries_in_order_within_limits(config: Config) -> None:
    dataset = built(config(dataset=FILE), prompts(100))
    size = max(map(entry_bytes, dataset.conversations))
    for limits in ({"max_entries": 7}, {"max_bytes": 5 * size}, {"max_bytes": 1}):
        blocks = dataset.blocks(**limits)
        assert sum(blocks, ()) == dataset.conversations
        most = max(map(len, blocks))
        assert most == (7 if "max_entries" in limits else max(1, limits["max_bytes"] // size))


def test_inputs_json_lists_every_payload_of_every_session(config: Config) -> None:
    dataset = built(config(dataset=FILE), [*prompts(1), dialogue("a", "b")])
    data = msgspec.json.decode(b"".join(dataset.inputs_json()), type=Inputs).data
    assert [session.session_id for session in data] == ["s0", "d"]
    contents = [
        [payload["messages"][0]["content"] for payload in session.payloads] for session in data
    ]
    assert contents == [["prompt 0"], ["a", "b"]]


# --- token ids -----------------------------------------------------------------------------------


def token_ids(config: Config, **parts: Any) -> BenchmarkConfig:
    endpoint = {"type": "completions", "prompt_token_ids": True} | parts.pop("endpoint", {})
    sections = {"dataset": FILE, "tokenizer": {"name": "t"}} | parts
    return config(endpoint=endpoint, **sections)


def test_prompts_are_sent_as_token_ids(config: Config, counter: LibraryTokenCounter) -> None:
    made = built(token_ids(config), prompts(2), counter)
    for number in range(2):
        assert sent(made, number)["prompt"] == counter.encode(f"prompt {number}")
        (turn,) = made.conversations[number].turns
        assert turn.input_tokens == counter.count(f"prompt {number}")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"endpoint": {"type": "chat"}}, "{endpoint.type} completions"),
        ({"tokenizer": {}}, "{tokenizer.name} a tokenizer"),
        ({"dataset": FILE | {"cache_bust": "first_turn_prefix"}}, "{dataset.cache_bust} none"),
    ],
)
def test_token_ids_need_completions_and_a_tokenizer(
    config: Config, parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as error:
        token_ids(config, **parts)
    assert f"{{endpoint.prompt_token_ids}} needs {message}" in str(error.value)
