"""A result counts successes, keeps failures, and is read back as it was written."""

import msgspec
import pytest

from aiperf_svc.config.slo import Slo
from aiperf_svc.core.results.measured import Column, Series, Table
from aiperf_svc.core.results.slo_results import limit_of
from aiperf_svc.core.results.tool_objectives import check_objectives
from aiperf_svc.core.results.tool_result import ToolResult
from tests.support import fake_steps as fake

INFOS = (fake.BANDWIDTH, fake.RTT)


def test_statistics_are_over_repetitions_and_steps() -> None:
    records = [
        fake.record(fake.reading(value), number=n, repetition=n)
        for n, value in enumerate((3.0, 1.0, 8.0), start=1)
    ]
    metric = fake.result(*records).metrics[0]
    assert (metric.avg, metric.min, metric.max, metric.p50, metric.count) == (4, 1, 8, 3, 3)
    assert metric.std == pytest.approx(3.6056, abs=1e-4)
    assert [(v.repetition, v.value) for v in metric.values] == [(1, 3), (2, 1), (3, 8)]


def test_one_value_has_no_deviation() -> None:
    assert fake.result().metrics[0].std is None


def test_metrics_are_in_the_workloads_order() -> None:
    assert [metric.info.tag for metric in fake.result().metrics] == ["bandwidth", "rtt"]


def test_retried_attempt_is_a_step_but_no_value() -> None:
    result = fake.result(
        fake.record(fake.reading(1.0), number=1, problem="rank 0: exit code 1"),
        fake.record(fake.reading(2.0), number=2, attempt=2),
        planned=1,
    )
    assert [(s.number, s.was_retried, s.has_failed) for s in result.steps] == [
        (1, True, False),
        (2, False, False),
    ]
    assert result.metrics[0].avg == 2.0
    accounts = result.accounts
    assert (accounts.planned, accounts.completed, accounts.failed, accounts.lost) == (1, 1, 0, 0)
    assert accounts.text == "1 planned = 1 completed; 1 attempt repeated"


def test_missing_steps_are_lost() -> None:
    accounts = fake.result(fake.record(), fake.record(number=2, problem="x"), planned=4).accounts
    assert accounts.text == "4 planned = 1 completed + 1 failed + 2 not run"


def test_a_step_that_prepares_has_no_values() -> None:
    prepares = fake.record(of=fake.step("fill", is_measured=False), repetition=0)
    result = fake.result(prepares, fake.record(number=2))
    assert result.metrics[0].count == 1
    assert [step.is_measured for step in result.steps] == [False, True]


def test_series_and_tables_name_their_step() -> None:
    table = Table(name="t", columns=(Column("size", "bytes"),), rows=((1.0,), (None,)))
    series = Series(name="bandwidth", unit="bit/s", times_s=(0.5,), values=(1.0,))
    read = fake.reading(series=(series,), tables=(table,))
    result = fake.result(fake.record(read, of=fake.step("a", labels={"from": "n"}), repetition=2))
    for found in (result.series[0], result.tables[0]):
        assert (found.step, found.repetition, found.labels) == ("a", 2, {"from": "n"})


def test_differing_facts_are_all_listed() -> None:
    facts = [{"path MTU": mtu, "protocol": "tcp"} for mtu in ("1500", "9000")]
    records = [
        fake.record(fake.reading(facts=each), number=n, repetition=n)
        for n, each in enumerate(facts, start=1)
    ]
    assert fake.result(*records).facts == {"path MTU": "1500, 9000", "protocol": "tcp"}


def test_a_result_reads_back_as_it_was_written() -> None:
    result = fake.result(fake.record(fake.reading(tools={0: "x 1"})))
    assert msgspec.json.decode(msgspec.json.encode(result), type=ToolResult) == result


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("bit/s", "9Gbit/s", 9e9),
        ("bit/s", "500M", 5e8),
        ("bit/s", 5, 5.0),
        ("bytes/s", "1.5GB/s", 1.5e9),
        ("bytes/s", "1Gi/s", 2.0**30),
        ("bytes", "4Ki", 4096.0),
        ("us", "1ms", 1000.0),
        ("us", "250", 250.0),
        ("s", "1m30s", 90.0),
        ("ratio", "2%", 0.02),
        ("ratio", "150%", 1.5),
        ("ops/s", "2000 ops/s", 2000.0),
        ("samples/s", 3.5, 3.5),
    ],
)
def test_a_limit_is_read_by_the_metrics_unit(unit: str, text: float | str, expected: float) -> None:
    assert limit_of(unit, text) == expected


@pytest.mark.parametrize(
    ("unit", "text", "message"),
    [
        ("bit/s", "9 furlongs", "expected a bit rate"),
        ("bytes/s", "fast", "expected a rate of bytes"),
        ("us", "5GB", "expected a duration"),
        ("ratio", "x%", "expected a ratio"),
        ("ops/s", "5k", "expected a number of ops/s"),
    ],
)
def test_a_limit_in_another_unit_is_refused(unit: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limit_of(unit, text)


def slo(**objective: object) -> Slo:
    return Slo.model_validate({"objectives": [{"metric": "bandwidth", **objective}]})


def test_an_objective_names_a_metric_of_the_workload() -> None:
    assert check_objectives(slo(min="9Gbit/s"), INFOS) == []
    assert check_objectives(slo(metric="bandwith", min=1), INFOS) == [
        "slo.objectives.0.metric: 'bandwith' is not a metric of this workload; "
        "did you mean bandwidth?"
    ]
    assert "expected bandwidth, rtt" in check_objectives(slo(metric="zzz", min=1), INFOS)[0]


def test_all_problems_of_an_objective_are_reported() -> None:
    problems = check_objectives(slo(stat="p99", min="x", max="y"), INFOS)
    assert [problem.partition(":")[0] for problem in problems] == [
        "slo.objectives.0.stat",
        "slo.objectives.0.max",
        "slo.objectives.0.min",
    ]


@pytest.mark.parametrize(
    ("objective", "ok", "reason"),
    [
        ({"min": "9Gbit/s"}, True, ""),
        ({"min": "9.5Gbit/s"}, False, "below the limit"),
        ({"max": "9Gbit/s", "stat": "p50"}, False, "above the limit"),
    ],
)
def test_an_objective_is_judged(objective: dict[str, str], ok: bool, reason: str) -> None:
    config = fake.config(slo=slo(**objective))
    (found,) = fake.result(config=config).slo
    assert (found.ok, found.reason, found.measured) == (ok, reason, 9.4e9)
    assert found.judged


def test_unmeasured_metric_leaves_its_objective_unjudged() -> None:
    config = fake.config(slo=slo(min="9Gbit/s"))
    (found,) = fake.result(fake.record(problem="x"), config=config).slo
    assert (found.ok, found.judged, found.reason, found.measured, found.limit) == (
        False,
        False,
        "not measured",
        None,
        9e9,
    )
