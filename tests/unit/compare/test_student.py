"""The t distribution against tables (NIST/SEMATECH e-Handbook of Statistical Methods)."""

import math

import pytest

from aiperf_svc.core.compare import student

TABLE = [
    # freedom, 90%, 95%, 99%, 99.9% within ± t
    (1, 6.314, 12.706, 63.657, 636.619),
    (2, 2.920, 4.303, 9.925, 31.599),
    (4, 2.132, 2.776, 4.604, 8.610),
    (9, 1.833, 2.262, 3.250, 4.781),
    (18, 1.734, 2.101, 2.878, 3.922),
    (30, 1.697, 2.042, 2.750, 3.646),
    (100, 1.660, 1.984, 2.626, 3.390),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]} degrees")
def test_quantiles_match_the_published_table(row: tuple[float, ...]) -> None:
    freedom, *values = row
    for confidence, t in zip((0.90, 0.95, 0.99, 0.999), values, strict=True):
        assert student.quantile(freedom, confidence) == pytest.approx(t, abs=6e-4)


def test_one_degree_of_freedom_is_the_cauchy_distribution() -> None:
    for t in (1e-6, 0.1, 1.0, 7.5, 1e4):
        exact = 1 - 2 / math.pi * math.atan(t)
        assert student.two_sided_p(t, 1) == pytest.approx(exact, rel=1e-8, abs=1e-12)


def test_two_degrees_of_freedom_have_a_closed_form() -> None:
    for t in (0.01, 0.5, 3.0, 40.0):
        exact = 1 - t / math.sqrt(2 + t * t)
        assert student.two_sided_p(t, 2) == pytest.approx(exact, rel=1e-9)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert student.quantile(1e6) == pytest.approx(1.959966, abs=1e-5)


def test_fractional_degrees_lie_between_whole_degrees() -> None:
    low, middle, high = (student.quantile(freedom) for freedom in (5, 4.5, 4))
    assert low < middle < high


def test_p_value_ignores_the_sign() -> None:
    assert student.two_sided_p(-2.5, 7) == student.two_sided_p(2.5, 7)


def test_the_ends_have_their_limits() -> None:
    assert student.two_sided_p(0.0, 5) == 1.0
    assert student.two_sided_p(math.inf, 5) == 0.0
    assert student.incomplete_beta(2, 3, 0.0) == 0.0
    assert student.incomplete_beta(2, 3, 1.0) == 1.0


def test_the_incomplete_beta_function_is_the_binomial_sum() -> None:
    x, n, a = 0.3, 12, 4
    exact = sum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert student.incomplete_beta(a, n - a + 1, x) == pytest.approx(exact, rel=1e-12)
