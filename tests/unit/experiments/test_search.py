"""A search doubles, bisects and confirms, and reports what it cannot determine."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from aiperf_svc.config.search import MAX_POINTS
from aiperf_svc.core.experiments.evidence import Evidence, is_held
from aiperf_svc.core.experiments.search import Search, SearchedTrial, SearchSpace
from aiperf_svc.core.experiments.search_report import Ending, SearchReport
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.fake_results import experiment, trial

LONGER = {"load.duration": "180s"}


def evidence(beyond: int, *, requests: int = 1_000, measured: float = 512.0) -> Evidence:
    return Evidence(
        name="p99 TTFT",
        bound="max",
        limit=500.0,
        measured=measured,
        unit="ms",
        is_met=beyond <= requests / 100,
        counts=(requests,) * 10,
        totals=(float(beyond),) * 10,
        allowed=0.01,
    )


HELD = SearchedTrial(
    evidence=(evidence(0, measured=120.0),), statistics={"request_throughput": 9.0}
)
BROKEN = SearchedTrial(evidence=(evidence(500),))
UNCLEAR = SearchedTrial(
    evidence=(msgspec.structs.replace(evidence(0), totals=(*(0.0,) * 9, 100.0)),)
)
CLIENT_BOUND = SearchedTrial(
    evidence=(), verdict="invalid: client-bound", is_client_bound=True, problem="late by 20 ms"
)
UNUSABLE = SearchedTrial(evidence=(), verdict="invalid", problem="a worker was lost")


def searched(**changes: Any) -> Search:
    space: dict[str, Any] = {
        "parameter": "load.request_rate",
        "low": 1,
        "high": 1000,
        "is_whole": False,
    }
    return Search(SearchSpace(**(space | {"longer": LONGER, "unit": "req/s"} | changes)))


def over_users(high: int = 64) -> Search:
    return searched(parameter="load.concurrency", high=high, is_whole=True, confirm=1, unit="users")


def answer(
    search: Search, find: Callable[[float, bool], SearchedTrial]
) -> list[tuple[float, bool]]:
    """Report a result at each requested value, and whether the trial is a longer one."""
    requested = []
    while (parameters := search.next()) is not None:
        requested.append((parameters[search.space.parameter], "load.duration" in parameters))
        search.add(parameters, find(*requested[-1]))
    return requested


def carry_out(
    search: Search, knee: float, above: SearchedTrial = BROKEN
) -> list[tuple[float, bool]]:
    return answer(search, lambda value, _: HELD if value <= knee else above)


@pytest.mark.parametrize("knee", [1.0, 3.3, 57.0, 412.0, 999.0])
@pytest.mark.parametrize(("low", "high"), [(1, 1000), (0.5, 5000)])
def test_bracket_is_as_narrow_as_requested(knee: float, low: float, high: float) -> None:
    search = searched(low=low, high=high)
    carry_out(search, knee)
    report = search.report
    assert report.ending is Ending.BRACKETED
    assert report.holds is not None
    assert report.breaks is not None
    assert report.holds <= knee < report.breaks
    assert report.breaks / report.holds <= 1.05 * (1 + 1e-9)
    assert len(report.points) <= MAX_POINTS
    assert report.confirmations == 3


def test_search_over_whole_users_has_expected_steps() -> None:
    values = carry_out(over_users(), 11)
    assert values == [
        *[(1, False), (2, False), (4, False), (8, False), (16, False)],
        *[(11, False), (13, False), (12, False)],
        *[(11, True), (12, True)],
    ]
    assert all(isinstance(value, int) for value, _ in values)


def test_report_describes_the_bracket() -> None:
    search = searched(low=100, high=800, precision=0.5)
    carry_out(search, 412)
    report = search.report
    assert report.result == (
        "holds 400 req/s, breaks at 566 (p99 TTFT 512 ms > 500 ms), 3 confirmations"
    )
    assert report.advice == ""
    assert report.knee is not None
    assert 400 < report.knee < 566
    assert msgspec.json.decode(msgspec.json.encode(report), type=SearchReport) == report


def test_neighbouring_whole_numbers_are_not_called_too_wide() -> None:
    search = over_users()
    carry_out(search, 4)
    report = search.report
    assert (report.holds, report.breaks) == (4, 5)
    assert report.advice == ""


def test_undecided_bracket_is_narrowed_by_longer_trials() -> None:
    search = over_users()
    answer(search, lambda value, _: HELD if value <= 8 else UNCLEAR if value < 12 else BROKEN)
    assert search.report.advice == (
        "the bracket is 50.0% wide, not 5.0% as requested: longer trials would narrow it"
    )


THIN = SearchedTrial(
    evidence=(
        msgspec.structs.replace(
            evidence(0, measured=120.0), is_met=None, counts=(5,) * 10, totals=(0.0,) * 10
        ),
    )
)
"""A trial within its limit with too few requests for a p99."""


def test_longer_runs_start_near_the_answer() -> None:
    search = over_users()
    requested = answer(
        search, lambda value, is_longer: BROKEN if value > 11 else HELD if is_longer else THIN
    )
    assert requested[:6] == [(1, False), (2, False), (4, False), (8, False), (16, False), (8, True)]
    assert min(value for value, is_longer in requested if is_longer) == 8
    report = search.report
    assert (report.holds, report.breaks, report.ending) == (11, 12, Ending.BRACKETED)


def test_trials_with_few_requests_still_end_bracketed() -> None:
    few = SearchedTrial(evidence=(msgspec.structs.replace(THIN.evidence[0], counts=(), totals=()),))
    search = over_users()
    answer(
        search, lambda value, is_longer: few if not is_longer else HELD if value <= 11 else BROKEN
    )
    report = search.report
    assert (report.holds, report.breaks, report.ending) == (11, 12, Ending.BRACKETED)


def test_undecided_search_reports_its_bounds() -> None:
    search = over_users(high=16)
    answer(search, lambda value, _: HELD if value <= 4 else THIN)
    assert search.report.result == (
        "holds 4 users, undecided above (p99 TTFT 120 ms ≤ 500 ms): the trials are too short to "
        "tell"
    )
    search = over_users(high=16)
    answer(search, lambda value, _: THIN if value <= 8 else BROKEN)
    assert search.report.result == (
        "undecided: no load holds for certain, and all values up to 8 users are within the limit, "
        "breaks at 16 (p99 TTFT 512 ms > 500 ms): the trials are too short to tell"
    )


def test_search_that_never_breaks_ends_after_longer_runs() -> None:
    search = searched(high=100)
    requested = carry_out(search, math.inf)
    assert [value for value, is_longer in requested if is_longer] == [100] * 3
    assert search.ending is Ending.NEVER_BREAKS
    assert search.report.result.startswith("holds 100 req/s, the end of the range")


def test_search_that_breaks_immediately_ends_after_longer_runs() -> None:
    search = searched()
    assert len(carry_out(search, 0)) == 4
    assert search.ending is Ending.BREAKS_AT_ONCE
    result = search.report.result
    assert result.startswith("breaks at 1 req/s, the start of the range (p99 TTFT 512 ms > 500 ms)")


@pytest.mark.parametrize(
    ("knee", "code", "problem"),
    [
        (2, ExitCode.OK, ""),
        (
            0,
            ExitCode.SLO_MISSED,
            "no load holds: load.request_rate breaks at 1 req/s, the start of the range (p99 TTFT "
            "512 ms > 500 ms), 3 confirmations: the limit is lower; lower `from`",
        ),
    ],
)
def test_search_without_a_load_that_holds_fails(knee: float, code: ExitCode, problem: str) -> None:
    search = searched(high=4)
    carry_out(search, knee)
    # Trials of a search for a share of good requests have no SLO.
    found = msgspec.structs.replace(experiment([trial()]), search=search.report)
    assert (found.exit_code, found.problem) == (code, problem)


def test_undecided_search_without_slo_is_not_judged() -> None:
    search = over_users(high=16)
    answer(search, lambda value, _: THIN if value <= 8 else BROKEN)
    found = msgspec.structs.replace(experiment([trial()]), search=search.report)
    assert found.exit_code is ExitCode.SLO_NOT_JUDGED
    assert found.problem.startswith("no load certainly holds: load.concurrency undecided: ")
    of_slo = msgspec.structs.replace(experiment([trial(slo="held")]), search=search.report)
    assert of_slo.exit_code is ExitCode.OK
    of_gate = experiment([trial(), trial(slo="missed")])
    of_gate = msgspec.structs.replace(of_gate, search=search.report)
    assert of_gate.exit_code is ExitCode.SLO_NOT_JUDGED


def test_limiting_client_is_never_the_servers_limit() -> None:
    search = searched(low=100, high=1600)
    carry_out(search, 700, above=CLIENT_BOUND)
    assert search.ending is Ending.CLIENT_BOUND
    lower, upper = search.bracket
    assert lower is not None
    assert upper is not None
    assert lower.value <= 700 < upper.value
    assert (lower.confirmations, upper.runs) == (3, 1)
    result = search.report.result
    assert "the client is the limit, not the server (late by 20 ms)" in result
    assert "breaks" not in result


def test_trial_without_usable_result_ends_the_range() -> None:
    search = searched(low=100, high=1600)
    carry_out(search, 300, above=UNUSABLE)
    assert search.ending is Ending.UNUSABLE
    assert "req/s is unusable: a worker was lost" in search.report.result


def test_unclear_point_gets_a_longer_run() -> None:
    search = searched(low=100, high=200)
    search.add({"load.request_rate": 100}, UNCLEAR)
    assert search.points[0].holds is None
    assert search.next() == {"load.request_rate": 100, **LONGER}
    search.add({"load.request_rate": 100, **LONGER}, HELD)
    assert search.next() == {"load.request_rate": 200}


def test_reason_of_a_break_is_beyond_its_limit() -> None:
    search = searched(low=100, high=200)
    lucky = SearchedTrial(evidence=(evidence(9, measured=480.0),))
    for result in (lucky, BROKEN):
        search.add({"load.request_rate": 100, **LONGER}, result)
    (point,) = search.points
    assert (point.holds, point.text) == (False, "p99 TTFT 512 ms > 500 ms")


def test_undecided_point_names_the_disagreement() -> None:
    search = searched(low=100, high=200)
    good = evidence(0, requests=2_000, measured=120.0)
    latency = msgspec.structs.replace(good, name="p99 latency")
    bad = evidence(5, requests=100, measured=900.0)
    search.add({"load.request_rate": 100}, SearchedTrial(evidence=(latency, good)))
    assert search.points[0].text == "p99 latency 120 ms ≤ 500 ms"
    search.add({"load.request_rate": 100, **LONGER}, SearchedTrial(evidence=(latency, bad)))
    (point,) = search.points
    assert (point.holds, point.text) == (None, "undecided: p99 TTFT 900 ms > 500 ms")


def test_undecided_longer_runs_end_the_search() -> None:
    search = searched(low=100, high=1600)
    requested = answer(
        search, lambda value, _: HELD if value < 300 else BROKEN if value > 900 else UNCLEAR
    )
    longer = [value for value, is_longer in requested if is_longer]
    assert len(longer) == search.space.max_longer_trials
    assert len(requested) - len(longer) <= MAX_POINTS
    assert search.ending is Ending.BRACKETED


def test_disagreeing_longer_run_moves_the_bracket() -> None:
    search = searched(low=100, high=400, precision=0.5)
    while (parameters := search.next()) is not None and "load.duration" not in parameters:
        value = parameters["load.request_rate"]
        search.add(parameters, HELD if value <= 300 else BROKEN)
    assert parameters == {"load.request_rate": 283, **LONGER}
    for _ in range(3):
        search.add(parameters, BROKEN)
    lower, upper = search.bracket
    assert lower is not None
    assert upper is not None
    assert (lower.value, upper.value) == (200, 283)


def test_further_trials_confirm_where_none_can_be_longer() -> None:
    search = searched(parameter="load.replay_speedup", high=4, is_whole=True, confirm=1, longer={})
    # The first trials of 2 and 3 find the bracket, and a second trial of each confirms it.
    assert [value for value, _ in carry_out(search, 2)] == [1, 2, 4, 3, 2, 3]
    assert search.report.confirmations == 1
    search = searched(low=100, high=200, longer={})
    search.add({"load.request_rate": 100}, UNCLEAR)
    assert search.next() == {"load.request_rate": 100}
    search.add({"load.request_rate": 100}, HELD)
    assert search.next() == {"load.request_rate": 200}


def test_single_failing_trial_is_undecided_until_runs_agree() -> None:
    trials = [msgspec.structs.replace(evidence(0), counts=(), is_met=is_met) for is_met in (1, 0)]
    assert is_held([trials[0]])
    assert is_held([trials[1]]) is not None
    assert not is_held([trials[1]])
    assert is_held(trials) is None


def test_longer_runs_decide_without_a_short_one() -> None:
    # With 90 requests p99 is unknown: such a trial has neither batches nor a judgement. With 1,000
    # requests a share of 1% has a standard error of sqrt(0.01 x 0.99 / 1,000) = 0.315%. With 9
    # degrees of freedom, 95% lie within 2.262 of these, or 0.712%: a share of 0 is certainly below
    # 1%.
    short = msgspec.structs.replace(evidence(0), is_met=None, counts=(), totals=())
    assert is_held([short]) is None
    assert is_held([short, evidence(0, requests=100)]) is True
    assert is_held([short, evidence(100, requests=100)]) is False
    # Too few requests for batches, but enough for a judgement by their own p90.
    few = msgspec.structs.replace(short, is_met=False)
    assert is_held([few]) is False
    assert is_held([few, evidence(0, requests=100)]) is True
    failed = msgspec.structs.replace(few, text="leaves out 80 of 90 requests")
    assert is_held([failed, evidence(0, requests=100)]) is None


def test_run_ended_by_another_objective_decides_nothing() -> None:
    ended = msgspec.structs.replace(
        evidence(0), is_met=None, counts=(), totals=(), text="ended early: p99 TTFT breaks"
    )
    assert is_held([ended]) is None
    assert is_held([ended, evidence(0)]) is True
    rate = msgspec.structs.replace(evidence(0), counts=(), totals=(), is_met=True)
    assert is_held([ended, rate]) is True
    assert is_held([msgspec.structs.replace(ended, is_unknown=True), rate]) is None


def test_few_clusters_of_slow_requests_prove_nothing() -> None:
    assert is_held([evidence(0, requests=1_000)])
    assert is_held([evidence(0, requests=40)]) is None
    one_cluster = msgspec.structs.replace(evidence(0), totals=(*(0.0,) * 9, 60.0))
    assert is_held([one_cluster]) is None


def test_an_average_is_held_by_its_batches() -> None:
    values = {"is_share": False, "allowed": 10.0, "counts": (100,) * 10}
    below = msgspec.structs.replace(evidence(0), totals=(800.0, 900.0) * 5, **values)
    assert is_held([below]) is True
    assert is_held([msgspec.structs.replace(below, bound="min")]) is False
