"""Records counted by worker, phase and outcome."""

import numpy as np

from aiperf_svc.core.records.arrived_records import count_arrived
from aiperf_svc.core.stats.columns import CHUNK_ROWS
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.records import Flag
from tests.support import fake_run

LAST = int(Flag.LAST_TURN)


def test_nothing_has_arrived_before_the_first_record() -> None:
    found = count_arrived(fake_run.columns_of(fake_run.make_rows(0)))
    assert (found.sent, found.outcomes, found.whole) == ({}, {}, {})


def test_conversation_ends_with_last_or_first_bad_turn() -> None:
    rows = fake_run.make_rows(
        5,
        worker=[3, 3, 3, 3, 0],
        phase=[1, 1, 1, 0, 1],
        flags=[0, LAST, 0, LAST, LAST],
        outcome=[
            Outcome.COMPLETED,
            Outcome.COMPLETED,
            Outcome.ERRORED,
            Outcome.COMPLETED,
            Outcome.UNSENT,
        ],
        start_wall_ns=[1, 1, 1, 1, 0],
    )
    found = count_arrived(fake_run.columns_of(rows))
    assert found.sent == {(3, Phase.PROFILING): 3, (3, Phase.WARMUP): 1}
    assert found.outcomes == {
        (3, Phase.PROFILING): {Outcome.COMPLETED: 1, Outcome.ERRORED: 1},
        (3, Phase.WARMUP): {Outcome.COMPLETED: 1},
        (0, Phase.PROFILING): {Outcome.UNSENT: 1},
    }
    assert found.whole == {(3, Phase.PROFILING): 1, (3, Phase.WARMUP): 1}


def test_pieces_add_up_to_all_rows() -> None:
    random = np.random.default_rng(1)
    count = 2 * CHUNK_ROWS + 17
    rows = fake_run.make_rows(
        count,
        worker=random.integers(0, 50, count),
        outcome=random.integers(0, len(Outcome), count),
        flags=random.choice([0, LAST], count),
        start_wall_ns=random.integers(0, 2, count),
    )
    # The highest rank arrives last and the lowest first, so the tables of counts grow meanwhile.
    rows["worker"][:CHUNK_ROWS] %= 10
    found = count_arrived(fake_run.columns_of(rows))
    mine = rows[rows["worker"] == 41]
    source = (41, Phase.PROFILING)
    assert found.sent[source] == np.count_nonzero(mine["start_wall_ns"])
    ended = mine[(mine["flags"] == LAST) | (mine["outcome"] != Outcome.COMPLETED)]
    assert sum(found.outcomes[source].values()) == len(ended)
    assert found.whole[source] == np.count_nonzero(ended["outcome"] == Outcome.COMPLETED)
    assert sum(found.sent.values()) == np.count_nonzero(rows["start_wall_ns"])


def test_session_tree_ends_once_despite_several_failures() -> None:
    rows = fake_run.make_rows(
        7,
        index=[4, 4, 4, 5, 5, 6, 6],
        flags=[0, 0, LAST, 0, LAST, 0, LAST],
        outcome=[
            *(Outcome.CANCELLED, Outcome.ERRORED, Outcome.ERRORED),
            *(Outcome.ERRORED, Outcome.COMPLETED),
            *(Outcome.COMPLETED, Outcome.COMPLETED),
        ],
    )
    found = count_arrived(fake_run.columns_of(rows), has_trees=True)
    assert found.outcomes == {(0, Phase.PROFILING): {Outcome.ERRORED: 2, Outcome.COMPLETED: 1}}
    assert found.whole == {(0, Phase.PROFILING): 1}
