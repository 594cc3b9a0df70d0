"""Users who each take a turn at a regular interval, against a server that says when they did."""

from pathlib import Path

import numpy as np
import pytest
from in_one_loop import config, lines, server, stack, talks

from aiperf_svc.core.load.user_schedule import first_turns
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id

TURNS = 4


async def test_each_user_takes_its_turns_by_its_own_clock(tmp_path: Path) -> None:
    dataset = talks(tmp_path, *({"text": f"turn {n}"} for n in range(TURNS)), count=50)
    users = {"rate": 40, "users": 8}
    with server(ttft="5ms", tokens=2) as mock:
        settings = config(mock.url, dataset=dataset, user_centric=users, requests=120)
        async with stack(settings, tmp_path, workers=2) as run:
            summary = await run.results()
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["requests"] == accounts["requests_sent"] == 120
    assert accounts["violations"] == []
    due = {
        line["metadata"]["x_request_id"]: line["metadata"]["credit_issued_ns"]
        for line in lines(tmp_path / "artifacts")
    }
    # 40 a second from the first request on, evenly: each of 8 users every 200 ms. At the end the
    # last conversations go on without new ones.
    gaps_ms = np.diff(np.sort(list(due.values())))[:80] / 1e6
    assert np.allclose(gaps_ms, 25, atol=0.001)
    for index, first in enumerate(first_turns(8, TURNS)):
        turns = [
            due[each]
            for turn in range(TURNS)
            if (each := request_id("test", Phase.PROFILING, index, turn)) in due
        ]
        assert len(turns) == (first.turns or TURNS)
        assert np.allclose(np.diff(turns), 200e6, atol=1_000)
    assert summary["requested_rate"]["avg"] == 40
    assert "blocked_request_count" not in summary
    arrivals = {row["request_id"]: row["arrival_wall_ns"] for row in truth["rows"]}
    assert all(arrivals[request] >= due[request] for request in due)


async def test_a_turn_waits_for_a_late_response_and_other_users_do_not(tmp_path: Path) -> None:
    dataset = talks(tmp_path, *({"text": f"turn {n}"} for n in range(TURNS)), count=50)
    users = {"rate": 40, "users": 4}  # a turn every 100 ms, and a response takes 150 ms
    with server(ttft="150ms", tokens=1) as mock:
        settings = config(mock.url, dataset=dataset, user_centric=users, duration="1s")
        async with stack(settings, tmp_path) as run:
            summary = await run.results()
    found = lines(tmp_path / "artifacts")
    later = [line for line in found if line["metadata"]["turn_index"]]
    assert summary["blocked_request_count"]["avg"] == len(later) > 10
    # The wait is the server's, so it is no lag of ours; conversations begin on time all the same.
    assert summary["schedule_lag"]["p50"] < 50
    begins = [line["metadata"]["credit_issued_ns"] for line in found if line not in later]
    starts = (np.sort(begins) - min(begins)) / 1e6
    assert starts[:4] == pytest.approx([0, 25, 50, 75], abs=0.001)
