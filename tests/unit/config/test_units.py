"""Human units are parsed, rejected, and written back exactly."""

import pytest

from aiperf_svc.config.units import (
    format_bit_rate,
    format_cpu,
    format_duration,
    format_size,
    format_unbounded_duration,
    parse_bit_rate,
    parse_cpu_millis,
    parse_duration_ns,
    parse_size,
    parse_unbounded_duration_ns,
)


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        (90, 90 * 10**9),
        (1.5, 1_500_000_000),
        ("1.5", 1_500_000_000),
        ("250ms", 250_000_000),
        ("1h30m", 5400 * 10**9),
        (" 5 m ", 300 * 10**9),
        ("7ns", 7),
        (0, 0),
    ],
)
def test_a_duration_is_read_in_every_unit(written: object, ns: int) -> None:
    assert parse_duration_ns(written) == ns


@pytest.mark.parametrize("written", ["5 parsecs", "", "-3s", -1, True, None, [], "nan", "inf"])
def test_invalid_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration_ns(written)


@pytest.mark.parametrize("ns", [0, 1, 999, 10**3, 1_500_000, 10**9, 90 * 10**9, 7200 * 10**9])
def test_duration_round_trips(ns: int) -> None:
    assert parse_duration_ns(format_duration(ns)) == ns


@pytest.mark.parametrize("written", ["2 apples", "", "Gi", -1, 1.5, True, None])
def test_invalid_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(written)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 3 * 2**20, 2**40, 2**40 + 1])
def test_size_round_trips(size: int) -> None:
    text = format_size(size)
    assert parse_size(int(text) if text.isdigit() else text) == size


@pytest.mark.parametrize(("written", "millis"), [(2, 2000), (0.5, 500), ("500m", 500), ("2", 2000)])
def test_cpus_are_read_as_kubernetes_writes_them(written: object, millis: int) -> None:
    assert parse_cpu_millis(written) == millis
    assert parse_cpu_millis(format_cpu(millis)) == millis


@pytest.mark.parametrize(
    ("written", "bits"),
    [
        ("9Gbit/s", 9 * 10**9),
        ("500M", 500 * 10**6),
        ("2.5 Gbps", 2_500_000_000),
        ("1000", 1000),
        (0, 0),
    ],
)
def test_bit_rate_round_trips(written: object, bits: int) -> None:
    assert parse_bit_rate(written) == bits
    assert parse_bit_rate(format_bit_rate(bits)) == bits


@pytest.mark.parametrize("written", ["fast", "", "9 GB/s", "9Gi", -1, True, None])
def test_invalid_bit_rate_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="expected a bit rate"):
        parse_bit_rate(written)


def test_unbounded_duration_round_trips_as_inf() -> None:
    for written in ("inf", " INF ", float("inf"), None):
        assert parse_unbounded_duration_ns(written) is None
    assert parse_unbounded_duration_ns("5s") == 5 * 10**9
    for value in (None, 5 * 10**9):
        assert parse_unbounded_duration_ns(format_unbounded_duration(value)) == value
