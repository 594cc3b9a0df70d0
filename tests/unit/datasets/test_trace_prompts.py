"""What the rows of a trace become: exact lengths, and shared prefixes where hash ids are equal."""

from collections.abc import Sequence

import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.core.datasets.base import PromptConversation, TokenCounter
from aiperf_svc.core.datasets.traces import TraceRow, checked, trace_prompts
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

BLOCK = 16


def row(length: int = 20, *ids: int, number: int = 1, **more: object) -> TraceRow:
    given: dict[str, object] = {"place": f"f:{number}", "input_length": length, "hash_ids": ids}
    return TraceRow(**(given | more))  # type: ignore[arg-type]


def made(
    rows: Sequence[TraceRow], counter: TokenCounter | None = None, *, seed: int = 0
) -> list[PromptConversation]:
    return trace_prompts(checked(rows, BLOCK), block_size=BLOCK, seed=seed, counter=counter)[0]


def texts(entries: Sequence[PromptConversation]) -> list[str]:
    return [turn.prompt.texts[0] for entry in entries for turn in entry.turns]


def shared_tokens(counter: TokenCounter, first: str, second: str) -> int:
    pairs = zip(counter.encode(first), counter.encode(second), strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), 10**9)


# --- lengths and prefixes ------------------------------------------------------------------------


def test_every_prompt_has_exactly_the_tokens_of_its_row(any_counter: LibraryTokenCounter) -> None:
    rows = [row(length, *range(-(-length // BLOCK))) for length in range(1, 120)]
    rows += [row(length) for length in range(1, 60)]
    rows += [row(BLOCK * 3 + length, 1, 2) for length in range(1, 40)]
    entries = made(rows, any_counter)
    wanted = [r.input_length for r in rows]
    assert any_counter.count_batch(texts(entries)) == wanted
    assert [turn.input_tokens for entry in entries for turn in entry.turns] == wanted


def test_equal_leading_ids_share_whole_blocks_token_for_token(
    any_counter: LibraryTokenCounter,
) -> None:
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
    # Blocks that differ may begin with the same token or two, never with a whole block.
    assert [tokens // BLOCK for tokens in alike] == [3, 1, 1]


def test_rows_without_ids_share_no_block(counter: LibraryTokenCounter) -> None:
    made_texts = texts(made([row(64)] * 50, counter))
    alike = [
        shared_tokens(counter, one, other)
        for place, one in enumerate(made_texts)
        for other in made_texts[:place]
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
    assert alike >= len(words) - 4  # the filling of its end may differ


def test_an_id_makes_the_same_words_in_every_place_and_without_a_tokenizer() -> None:
    first, second = texts(made([row(48, 1, 2, 3), row(32, 3, 2)]))
    assert first.split()[BLOCK : 2 * BLOCK] == second.split()[BLOCK:]
    assert first.split()[2 * BLOCK :] == second.split()[:BLOCK]


def test_the_seed_decides_the_words() -> None:
    rows = [row(40, 1, 2), row(9)]
    assert texts(made(rows)) == texts(made(rows))
    assert not set(texts(made(rows, seed=1))) & set(texts(made(rows)))


# --- rows ----------------------------------------------------------------------------------------


def test_rows_of_a_session_are_turns_at_the_place_of_the_first() -> None:
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


def test_rows_without_tokens_are_left_out_and_counted() -> None:
    rows = [row(5, output_length=0), row(0), row(6, output_length=1)]
    entries, left_out = trace_prompts(rows, block_size=BLOCK, seed=0, counter=None)
    assert (len(entries), left_out) == (1, 2)


def test_a_limit_ends_reading_unless_sessions_may_go_on() -> None:
    rows = checked([row(5), row(6), row(7), row(-1)], BLOCK)
    entries, _ = trace_prompts(rows, block_size=BLOCK, seed=0, counter=None, limit=2)
    assert len(entries) == 2
    talks = [row(5, session="a"), row(6), row(7), row(8, session="a")]
    entries, _ = trace_prompts(talks, block_size=BLOCK, seed=0, counter=None, limit=2)
    assert [len(entry.turns) for entry in entries] == [2, 1]


@pytest.mark.parametrize(
    ("bad", "wrong"),
    [
        (row(5, number=2, timestamp=-1.0), "time -1 is negative"),
        (row(5, number=2, timestamp=float("nan")), "time nan is negative or no number"),
        (row(5, number=2, timestamp=9.0), "time 9 is before 10 .*sort the file"),
        (row(-5, number=2), "a prompt of -5 tokens"),
        (row(10**8, number=2), "a prompt of 100,000,000 tokens"),
        (row(5, number=2, output_length=-1), "a response of -1 tokens"),
        (row(32, 1, 2, 3, number=2), "3 hash ids for 32 tokens.*2 blocks of 16.*block_size"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_line(bad: TraceRow, wrong: str) -> None:
    with pytest.raises(DatasetError, match=f"^f:2: .*{wrong}"):
        made([row(5, timestamp=10.0), bad])


def test_a_session_takes_no_whole_requests() -> None:
    whole = Prompt(messages=({"role": "user", "content": "x"},))
    rows = [row(5, session="a"), row(0, number=2, session="a", written=whole)]
    with pytest.raises(DatasetError, match=r"^f:2: .*the new turn only"):
        made(rows)
