"""Targets of the figures on two cores shared with the server, and whether they were met."""

from typing import Any, NamedTuple


class Target(NamedTuple):
    """A limit for one figure."""

    case: str
    figure: str
    limit: float
    is_least: bool
    text: str
    is_of_quick: bool = True
    """Whether a quick run is accurate enough."""


TARGETS = (
    Target("requests", "ratio_to_wrk", 0.3, True, "at least 0.3 of wrk"),
    Target("requests", "requests_per_s", 40_000, True, "at least 40,000/s"),
    Target("requests", "cpu_us_per_request", 35, False, "at most 35 µs"),
    Target("streams", "chunks_per_s", 200_000, True, "at least 200,000/s"),
    Target("streams", "cpu_us_per_chunk", 7, False, "at most 7 µs"),
    Target("interpreted", "chunks_per_s", 120_000, True, "at least 120,000/s"),
    Target("lifecycle", "idle_pss_mib", 300, False, "at most 300 MiB"),
    # A quick run compares 400 connections, for which the limit allows 4 MiB. Alternating runs of
    # one commit on a busy machine differ by 5 MiB.
    Target("memory", "kib_per_connection", 10, False, "at most 10 KiB", is_of_quick=False),
    Target("conversations", "kib_per_conversation", 60, False, "at most 60 KiB"),
    Target("conversations", "schedule_lag_p99_ms", 2, False, "at most 2 ms"),
)


def judged(cases: dict[str, dict[str, Any]], *, is_quick: bool) -> list[dict[str, Any]]:
    """Return each target whose figure was measured accurately enough."""
    found = []
    for target in TARGETS:
        value = cases.get(target.case, {}).get(target.figure)
        if value is not None and (target.is_of_quick or not is_quick):
            met = value >= target.limit if target.is_least else value <= target.limit
            found.append(
                {
                    "name": f"{target.case}.{target.figure}",
                    "value": value,
                    "target": target.text,
                    "met": met,
                }
            )
    return found
