"""Regions and points of a curve, by the examples of the rules."""

import pytest

from aiperf_svc.config.concurrency_regions import Region, curve_points, regions_of


@pytest.mark.parametrize(
    ("c_min", "c_max", "low_end", "medium_end"),
    # The last concurrency divides 216, the cube of 6.
    [(32, 8192, 52, 437), (1, 256, 7, 41), (16, 1024, 26, 117), (1, 217, 7, 37)],
)
def test_regions_match_the_rules(c_min: int, c_max: int, low_end: int, medium_end: int) -> None:
    regions = regions_of(c_min, c_max)
    assert regions.span(Region.LOW) == (c_min + 1, low_end)
    assert regions.span(Region.MEDIUM) == (low_end + 1, medium_end)
    assert regions.span(Region.HIGH) == (medium_end + 1, c_max)
    assert regions.span(Region.ULTRA_LOW) == (1, 32)


def test_margin_is_a_tenth_above_the_maximum() -> None:
    assert regions_of(1, 1024).margin_end == 1127


@pytest.mark.parametrize(
    ("c_min", "c_max", "text"),
    [(33, 64, "lowest concurrency is 33"), (1, 32, "highest concurrency is 32"), (0, 64, "is 0")],
)
def test_ranges_without_regions_are_refused(c_min: int, c_max: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        regions_of(c_min, c_max)


@pytest.mark.parametrize("c_max", [33, 34, 40, 64, 1024, 100_000])
def test_points_cover_every_region(c_max: int) -> None:
    points = curve_points(c_max)
    regions = regions_of(1, c_max)
    assert len(points) == 7
    assert (points[0], points[-1]) == (1, c_max)
    for region in Region:
        low, high = regions.span(region)
        assert any(low <= each <= high for each in points), region
