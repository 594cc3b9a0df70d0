"""Only changes are sent, and every page can be restored from them."""

import math
import random

from aiperf_svc.core.telemetry.changes import MAX_OTHER_SERIES, ChangeFinder
from aiperf_svc.core.telemetry.page import Page, Series


def _page(values: dict[str, float]) -> Page:
    return Page({Series(name): value for name, value in values.items()}, {}, None)


def test_repeated_page_has_no_changes() -> None:
    finder = ChangeFinder()
    first = finder.take(_page({"a": 1.0, "b": math.nan}))
    assert [new.series.name for new in first.new] == ["a", "b"]
    assert first.numbers == [0, 1]
    second = finder.take(_page({"a": 1.0, "b": math.nan}))
    assert (second.new, second.numbers) == ([], [])


def test_missing_series_becomes_nan_and_may_return() -> None:
    finder = ChangeFinder()
    finder.take(_page({"a": 1.0, "b": 2.0}))
    gone = finder.take(_page({"a": 1.0}))
    assert gone.numbers == [1]
    assert math.isnan(gone.values[0])
    assert finder.take(_page({"a": 1.0})).numbers == []
    back = finder.take(_page({"a": 1.0, "b": 2.0}))
    assert (back.new, back.numbers, back.values) == ([], [1], [2.0])


def test_random_pages_are_restored_from_their_changes() -> None:
    rng = random.Random(1)
    finder = ChangeFinder()
    names: list[str] = []
    known: dict[str, float] = {}
    for _ in range(200):
        page = {n: float(rng.randrange(3)) for n in "abcdefgh" if rng.random() < 0.8}
        changes = finder.take(_page(page or {"a": 0.0}))
        names += [new.series.name for new in changes.new]
        for number, value in zip(changes.numbers, changes.values, strict=True):
            known[names[number]] = value
        there = {name: value for name, value in known.items() if not math.isnan(value)}
        assert there == (page or {"a": 0.0})


def test_known_families_have_priority_beyond_the_limit() -> None:
    finder = ChangeFinder()
    values = {f"other{n}": 1.0 for n in range(MAX_OTHER_SERIES + 10)}
    changes = finder.take(_page(values | {"vllm:num_requests_running": 5.0}))
    assert changes.left_out == 10
    assert changes.new[-1].series.name == "vllm:num_requests_running"
    assert finder.take(_page(values | {"vllm:num_requests_running": 6.0})).values == [6.0]
