"""Users that each take a turn at regular intervals, compared with the server's own record."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from aiperf_svc.core.load.user_schedule import first_turns
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id
from tests.support.in_one_loop import config, lines, results_of, server, stack, talks

TURNS = 4


async def test_each_user_takes_turns_on_its_own_clock(tmp_path: Path) -> None:
    dataset = talks(tmp_path, *({"text": f"turn {n}"} for n in range(TURNS)), count=50)
    users = {"rate": 40, "users": 8}
    with server(ttft="5ms", tokens=2) as mock:
        settings = config(mock.url, dataset=dataset, user_centric=users, requests=60)
        # As between pods of a cluster.
        async with stack(settings, tmp_path, workers=2, is_apart=True) as run:
            assert run.topology.workers == 2
            summary = await run.results()
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["requests"] == accounts["requests_sent"] == 60
    assert accounts["violations"] == []
    found = {
        line["metadata"]["x_request_id"]: line["metadata"] for line in lines(tmp_path / "artifacts")
    }
    due = {each: metadata["credit_issued_ns"] for each, metadata in found.items()}
    users_begin = [due[request_id("test", Phase.PROFILING, index, 0)] for index in range(8)]
    # 40 per second from the first request on: 8 users offset by 25 ms, each every 200 ms.
    assert np.diff(users_begin) / 1e6 == pytest.approx([25] * 7, abs=0.001)
    for index, first in enumerate(first_turns(8, TURNS)):
        ids = [request_id("test", Phase.PROFILING, index, turn) for turn in range(TURNS)]
        taken = [each for each in ids if each in found]
        assert len(taken) == (first.turns or TURNS)
        for before, after in itertools.pairwise(taken):
            by_clock = due[before] + 200_000_000
            ready = found[before]["request_end_ns"]
            assert due[after] == pytest.approx(max(by_clock, ready), abs=1)
    assert summary["requested_rate"]["avg"] == 40
    arrivals = {row["request_id"]: row["arrival_wall_ns"] for row in truth["rows"]}
    assert all(arrivals[request] >= due[request] for request in due)


async def test_turn_waits_only_for_a_late_response(tmp_path: Path) -> None:
    dataset = talks(tmp_path, *({"text": f"turn {n}"} for n in range(TURNS)), count=50)
    users = {"rate": 40, "users": 4}  # a turn every 100 ms, and a response takes 150 ms
    with server(ttft="150ms", tokens=1) as mock:
        settings = config(mock.url, dataset=dataset, user_centric=users, requests=60)
        summary = await results_of(settings, tmp_path)
    found = lines(tmp_path / "artifacts")
    later = [line for line in found if line["metadata"]["turn_index"]]
    assert summary["blocked_request_count"]["avg"] == len(later) > 10
    # The server causes the wait, so it is not our lag. Conversations still start on time.
    assert summary["schedule_lag"]["p50"] < 50
    begins = [line["metadata"]["credit_issued_ns"] for line in found if line not in later]
    starts = (np.sort(begins) - min(begins)) / 1e6
    assert starts[:4] == pytest.approx([0, 25, 50, 75], abs=0.001)
