"""Prompts from the rows of a trace: exact lengths, and shared prefixes for equal hash ids."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.base import PromptConversation, TokenCounter
from aiperf_svc.core.datasets.block_texts import BlockTexts
from aiperf_svc.core.datasets.trace_index import Line, TraceIndex, in_schedule, index_rows
from aiperf_svc.core.datasets.trace_prompts import TracePrompts
from aiperf_svc.core.datasets.traces import TraceRow, checked
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError
from tests.support.small_configs import small_config

BLOCK = 16


def replay(*, random_seed: int = 0, **load: object) -> BenchmarkConfig:
    """Return a replay of a trace, or another load."""
    dataset = {"kind": "bailian_trace", "file": "f"}
    return small_config(load=load, dataset=dataset, random_seed=random_seed)


def row(length: int = 20, *ids: int, number: int = 1, **more: object) -> TraceRow:
    defaults: dict[str, Any] = {"place": f"f:{number}", "input_length": length, "hash_ids": ids}
    return TraceRow(**(defaults | more))


def indexed(rows: Iterable[TraceRow], *, limit: int | None = None) -> TraceIndex:
    """Return an index of rows. The position of each is its place in the sequence."""
    placed = ((Line(n, n, 100), row) for n, row in enumerate(rows))
    return index_rows(placed, units_per_second=1.0, limit=limit)


def prompts_of(
    config: BenchmarkConfig,
    rows: Sequence[TraceRow],
    counter: TokenCounter | None = None,
    *,
    warmup_entries: int = 0,
) -> TracePrompts:
    index = indexed(checked(rows, BLOCK))
    texts = BlockTexts(config.random_seed, BLOCK, counter)
    read = lambda lines: [rows[line.position] for line in lines]  # noqa: E731
    return TracePrompts(config, index, read, texts, warmup_entries=warmup_entries)


def made(
    rows: Sequence[TraceRow], counter: TokenCounter | None = None, *, seed: int = 0
) -> list[PromptConversation]:
    prompts = prompts_of(replay(random_seed=seed), rows, counter)
    return prompts.entries(range(len(prompts)))


def texts(entries: Sequence[PromptConversation]) -> list[str]:
    return [turn.prompt.texts[0] for entry in entries for turn in entry.turns]


def shared_tokens(counter: TokenCounter, first: str, second: str) -> int:
    pairs = zip(counter.encode(first), counter.encode(second), strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), 10**9)


# --- lengths and prefixes ------------------------------------------------------------------------


def test_every_prompt_has_exactly_its_rows_tokens(any_counter: LibraryTokenCounter) -> None:
    rows = [row(length, *range(-(-length // BLOCK))) for length in range(1, 120)]
    rows += [row(length) for length in range(1, 60)]
    rows += [row(BLOCK * 3 + length, 1, 2) for length in range(1, 40)]
    entries = made(rows, any_counter)
    wanted = [r.input_length for r in rows]
    assert any_counter.count_batch(texts(entries)) == wanted
    assert [turn.input_tokens for entry in entries for turn in entry.turns] == wanted


def test_equal_leading_ids_share_exact_whole_blocks(any_counter: LibraryTokenCounter) -> None:
    rows = [
        row(100, 7, 8, 9, 10, 11, 12, 13),
        row(95, 7, 8, 9, 20, 21, 22),
        row(70, 7, 30, 31, 32, 33),
    ]
    first, second, third = texts(made(rows, any_counter))
    alike = [
        shared_tokens(any_counter, first, second),
        shared_tokens(any_counter, first, third),
        shared_tokens(any_counter, second, third),
    ]
    # Different blocks may begin with the same one or two tokens, but never with a whole block.
    assert [tokens // BLOCK for tokens in alike] == [3, 1, 1]


def test_rows_without_ids_share_no_block(counter: LibraryTokenCounter) -> None:
    made_texts = texts(made([row(64)] * 50, counter))
    alike = [
        shared_tokens(counter, one, other)
        for index, one in enumerate(made_texts)
        for other in made_texts[:index]
    ]
    assert max(alike) < BLOCK


def test_tokens_beyond_the_ids_are_the_rows_own(counter: LibraryTokenCounter) -> None:
    first, second = texts(made([row(64, 1, 2), row(64, 1, 2)], counter))
    assert shared_tokens(counter, first, second) // BLOCK == 2


def test_a_short_last_block_begins_the_whole_one(counter: LibraryTokenCounter) -> None:
    short, whole = texts(made([row(27, 1, 2), row(48, 1, 2, 3)], counter))
    words = short.split()
    alike = sum(one == other for one, other in zip(words, whole.split(), strict=False))
    assert shared_tokens(counter, short, whole) >= BLOCK
    assert alike >= len(words) - 4  # the padding at its end may differ


def test_hash_id_yields_the_same_words_everywhere() -> None:
    first, second = texts(made([row(48, 1, 2, 3), row(32, 3, 2)]))
    assert first.split()[BLOCK : 2 * BLOCK] == second.split()[BLOCK:]
    assert first.split()[2 * BLOCK :] == second.split()[:BLOCK]


def test_the_seed_decides_the_words() -> None:
    rows = [row(40, 1, 2), row(9)]
    assert texts(made(rows)) == texts(made(rows))
    assert not set(texts(made(rows, seed=1))) & set(texts(made(rows)))


# --- rows ----------------------------------------------------------------------------------------


def test_session_rows_are_turns_at_the_first_place() -> None:
    rows = [
        row(5, session="a", output_length=3),
        row(6),
        row(7, session="a", delay_ns=9, output_length=4),
    ]
    entries = made(rows)
    assert [entry.id for entry in entries] == ["a", "session_000001"]
    assert [len(turn.prompt.texts[0].split()) for turn in entries[0].turns] == [5, 7]
    assert [turn.prompt.output_tokens for turn in entries[0].turns] == [3, 4]
    assert [turn.delay_ns for turn in entries[0].turns] == [0, 9]


def test_entries_made_alone_equal_those_made_together(counter: LibraryTokenCounter) -> None:
    rows = [row(40, n % 3, n, number=n, session="s" if n % 4 == 1 else None) for n in range(20)]
    prompts = prompts_of(replay(), rows, counter)
    together = prompts.entries(range(len(prompts)))
    assert [prompts.entries([n])[0] for n in (9, 1, 14, 0)] == [together[n] for n in (9, 1, 14, 0)]


def test_rows_without_tokens_are_left_out_and_counted() -> None:
    index = indexed([row(5, output_length=0), row(0), row(6, output_length=1)])
    assert (index.entry_count, index.left_out) == (1, 2)


def test_limit_ends_reading_unless_sessions_may_continue() -> None:
    rows = checked([row(5), row(6), row(7), row(-1)], BLOCK)
    assert indexed(rows, limit=2).entry_count == 2
    talks = [row(5, session="a"), row(6), row(7), row(8, session="a")]
    assert indexed(talks, limit=2).turn_counts.tolist() == [2, 1]


# --- replays -------------------------------------------------------------------------------------


def due_s(prompts: TracePrompts) -> list[float]:
    return (np.frombuffer(prompts.due_ns, dtype="<i8") / 1e9).tolist()


@pytest.mark.parametrize(
    ("load", "due"),
    [
        ({}, [0, 2, 7]),
        ({"fixed_schedule_auto_offset": False}, [3, 5, 10]),
        ({"fixed_schedule_start_offset": "1s"}, [2, 4, 9]),
        ({"replay_speedup": 4}, [0, 0.5, 1.75]),
        ({"fixed_schedule_start_offset": "1s", "replay_speedup": 0.5}, [4, 8, 18]),
    ],
)
def test_a_row_is_due_at_its_time(load: dict[str, Any], due: list[float]) -> None:
    rows = [row(5, timestamp=time) for time in (3.0, 5.0, 10.0)]
    assert due_s(prompts_of(replay(fixed_schedule=True, **load), rows)) == due


def test_rows_have_due_times_only_with_schedule() -> None:
    assert prompts_of(replay(), [row(5, timestamp=1.0)]).due_ns == b""


def test_schedule_has_only_rows_between_its_offsets() -> None:
    times = [0.0, 1.0, 2.0, 2.0, 3.0, 3.5]
    rows = [row(5, timestamp=time, number=n) for n, time in enumerate(times)]
    read = iter([*rows, row(5, timestamp=None)])
    offsets: dict[str, Any] = {
        "fixed_schedule_start_offset": "1s",
        "fixed_schedule_end_offset": "2s",
    }
    load = replay(fixed_schedule=True, **offsets).load
    assert list(in_schedule(read, load, 1.0)) == rows[1:4]
    assert len(list(read)) == 2


def test_schedule_needs_times_except_for_later_turns() -> None:
    load = replay(fixed_schedule=True).load
    talk = [row(5, timestamp=1.0, session="a"), row(5, session="a", delay_ns=3)]
    assert len(list(in_schedule(talk, load, 1.0))) == 2
    with pytest.raises(DatasetError, match=r"^f:7: a row without `timestamp`"):
        list(in_schedule([*talk, row(5, session="b", number=7)], load, 1.0))


def test_untimed_turn_is_left_out_with_its_predecessor() -> None:
    late = row(5, timestamp=2.0, session="b")
    early = [
        row(5, timestamp=0.5, session="a"),
        late,
        row(5, session="a", delay_ns=3),
        row(5, session="b", delay_ns=3),
    ]
    load = replay(fixed_schedule=True, fixed_schedule_start_offset="1s").load
    assert list(in_schedule(early, load, 1.0)) == [late, early[3]]

    silent = [row(5, timestamp=0.5, session="a", output_length=0), *early[1:]]
    load = replay(fixed_schedule=True).load
    assert list(in_schedule(silent, load, 1.0)) == [silent[0], late, early[3]]


def test_later_turn_is_due_after_delay_or_time() -> None:
    rows = [
        row(5, timestamp=2.0, session="a"),
        row(5, timestamp=4.0, session="a"),
        row(5, timestamp=6.0, session="a", delay_ns=8_000),
    ]
    (entry,) = prompts_of(replay(fixed_schedule=True, replay_speedup=2), rows).entries([0])
    assert [turn.earliest_ns for turn in entry.turns] == [0, 10**9, 0]
    assert [turn.delay_ns for turn in entry.turns] == [0, 0, 4_000]
    (entry,) = prompts_of(replay(), rows).entries([0])
    assert [turn.earliest_ns for turn in entry.turns] == [0, 0, 0]


def test_replay_warmup_shares_no_block_with_the_trace(counter: LibraryTokenCounter) -> None:
    written = Prompt(texts=("x",))
    rows = [row(64, 1, 2, 3, 4, timestamp=0.0, output_length=7), row(0, timestamp=1.0)]
    rows[1] = row(0, timestamp=1.0, written=written)
    config = replay(fixed_schedule=True)
    prompts = prompts_of(config, rows, counter, warmup_entries=2)
    first, _, own, other = prompts.entries(range(4))
    assert len(due_s(prompts)) == 2
    assert own.turns[0].input_tokens == 64
    assert own.turns[0].prompt.output_tokens == 7
    assert other.turns[0].input_tokens == config.dataset.input_tokens.mean
    alike = shared_tokens(counter, first.turns[0].prompt.texts[0], own.turns[0].prompt.texts[0])
    assert alike < BLOCK


@pytest.mark.parametrize(
    ("bad", "wrong"),
    [
        (row(5, number=2, timestamp=-1.0), "time -1 is negative"),
        (row(5, number=2, timestamp=float("nan")), "time nan is negative or no number"),
        (row(5, number=2, timestamp=9.0), "time 9 is before 10 .*sort the file"),
        (row(-5, number=2), "a prompt of -5 tokens"),
        (row(10**8, number=2), "a prompt of 100,000,000 tokens"),
        (row(5, number=2, output_length=-1), "a response of -1 tokens"),
        (row(32, 1, 2, 3, number=2), "3 hash ids for 32 tokens.*blocks of 16 are 2.*block_size"),
    ],
)
def test_impossible_row_is_refused_with_its_line(bad: TraceRow, wrong: str) -> None:
    with pytest.raises(DatasetError, match=f"^f:2: .*{wrong}"):
        made([row(5, timestamp=10.0), bad])


def test_session_does_not_mix_turns_and_whole_requests() -> None:
    whole = Prompt(messages=({"role": "user", "content": "x"},))
    rows = [row(5, session="a"), row(0, number=2, session="a", written=whole)]
    with pytest.raises(DatasetError, match=r"^f:2: .*only the new turn in others"):
        made(rows)
