"""Numbers in a terminal are short and keep what matters."""

from aiperf_svc.domain.number_text import count, milliseconds, seconds


def test_durations_grow_units() -> None:
    assert [seconds(s) for s in (4.24, 59.9, 61, 3725)] == ["4.2 s", "59.9 s", "1:01", "1:02:05"]
    assert [milliseconds(ms) for ms in (20.44, 1240.0, None)] == ["20.4 ms", "1.24 s", "–"]


def test_one_is_not_many() -> None:
    assert [count(1, "worker"), count(2000, "worker")] == ["1 worker", "2,000 workers"]
