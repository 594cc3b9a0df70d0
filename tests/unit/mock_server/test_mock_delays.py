"""Durations and distributions of the mock server."""

import random
from statistics import fmean, median

import pytest

from aiperf_svc.mock_server.delays import duration_ns, parse_delay


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("20ms", 20_000_000), ("1.5s", 1_500_000_000), ("3 us", 3_000), ("2m", 120 * 10**9)],
)
def test_a_duration_is_read_in_its_unit(text: str, expected: int) -> None:
    assert duration_ns(text) == expected


@pytest.mark.parametrize("text", ["20", "-5ms", "ms", "5 days", "", "normal:1ms,1ms"])
def test_a_bad_duration_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        duration_ns(text)
    assert repr(text.strip()) in str(caught.value)


def test_a_fixed_delay_has_no_distribution() -> None:
    assert parse_delay("20ms").fixed_ns == 20_000_000
    assert parse_delay("exp:20ms").fixed_ns is None


@pytest.mark.parametrize(
    "text", ["normal:20ms,2ms", "uniform:5ms,15ms", "exp:20ms", "lognormal:20ms,0.5"]
)
def test_draws_have_the_stated_mean(text: str) -> None:
    delay = parse_delay(text)
    draw = delay.sampler(random.Random(7))
    drawn = [draw() for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(delay.mean_ns, rel=0.03)
    assert min(drawn) >= 0


def test_lognormal_median_is_the_first_parameter() -> None:
    draw = parse_delay("lognormal:20ms,0.5").sampler(random.Random(7))
    assert median(draw() for _ in range(20_000)) == pytest.approx(20_000_000, rel=0.03)


def test_a_normal_delay_is_never_negative() -> None:
    draw = parse_delay("normal:1ms,10ms").sampler(random.Random(7))
    assert min(draw() for _ in range(1_000)) == 0


def test_equal_seeds_draw_equal_delays() -> None:
    first = parse_delay("exp:20ms").sampler(random.Random(7))
    second = parse_delay("exp:20ms").sampler(random.Random(7))
    assert [first() for _ in range(100)] == [second() for _ in range(100)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gauss:1ms,1ms", "names no known distribution"),
        ("normal:20ms", "has 1 parameters; expected normal:MEAN,STDDEV"),
        ("exp:1ms,2ms", "has 2 parameters; expected exp:MEAN"),
        ("uniform:9ms,1ms", "ends before it begins"),
        ("lognormal:20ms,x", "sigma 'x'"),
    ],
)
def test_bad_distribution_is_refused_with_expectation(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_delay(text)
