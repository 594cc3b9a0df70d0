"""Wrong and stale sources are reported with the reason."""

import random

import pytest

from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from aiperf_svc.core.telemetry.sources import judge_source
from aiperf_svc.core.telemetry.system_report import SourceReport
from tests.support.fake_sources import at, source

TOKENS = "vllm:generation_tokens_total"


def judged(log: SourceLog, end_s: float = 20) -> SourceReport:
    return judge_source(log, begin_ns=at(0), end_ns=at(end_s), interval_s=1.0)


def test_changing_source_is_used_with_its_interval() -> None:
    report = judged(source({TOKENS: 10.0 * second} for second in range(21)))
    assert (report.problem, report.notes) == ("", ())
    assert report.update_interval_s == pytest.approx(1.0)
    assert report.latency_ms == pytest.approx(2.0)


def test_report_names_gpus_that_state_their_uuids() -> None:
    power = "DCGM_FI_DEV_POWER_USAGE"
    labels = ('UUID="GPU-1",Hostname="n1"', 'gpu="1"')
    report = judged(source({f"{power}{{{each}}}": 90.0 + n for each in labels} for n in range(21)))
    assert report.gpus == ("GPU-1 on n1",)


def test_slow_exporter_has_its_own_interval() -> None:
    report = judged(source({"power": float(second // 30)} for second in range(121)), end_s=120)
    assert report.is_used
    assert report.update_interval_s == pytest.approx(30.0)
    assert report.notes == ("its values change every 30 s; it is read every 1 s",)


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (source({TOKENS: 5.0} for _ in range(21)), "it repeated the same values for 20 s of load"),
        (
            source({TOKENS: float(second % 10)} for second in range(21)),
            "its counters restarted 2 times during the run",
        ),
        (
            source(({TOKENS: float(second)} for second in range(21)), clock_offset_s=90.0),
            "its clock or its values are 90 s behind ours",
        ),
        (
            source(({TOKENS: float(second)} for second in range(21)), clock_offset_s=-7.0),
            "its clock or its values are 7 s ahead of ours",
        ),
        (
            source({f'{TOKENS}{{pod="{n % 2}"}}': 500.0 - 300 * (n % 2) + n} for n in range(21)),
            "its counters disappeared 10 times: it alternates between servers",
        ),
        (source([]), "no page was read"),
    ],
)
def test_implausible_source_is_named(log: SourceLog, problem: str) -> None:
    report = judged(log)
    assert not report.is_used
    assert report.problem == problem


@pytest.mark.parametrize(("first_s", "part"), [(1.5, "first 1.5 s"), (-3, "last 2 s")])
def test_page_missing_around_the_load_is_reported(first_s: float, part: str) -> None:
    pages = ({TOKENS: 10.0 * second} for second in range(22))
    assert judged(source(pages, first_s=first_s)).notes == (
        f"its counters miss the {part} of the load",
    )


def test_old_timestamps_count_as_a_clock_offset() -> None:
    log, reader = SourceLog("http://cache/metrics"), PageReader()
    for second in range(5):
        page = reader.read(f"{TOKENS} {second} {at(second - 60) // 1_000_000}\n")
        log.add(page, wall_ns=at(second), latency_ns=1)
    assert judged(log, end_s=5).problem == "its clock or its values are 60 s behind ours"


def test_mostly_failing_source_is_not_used() -> None:
    log = source({TOKENS: float(second)} for second in range(3))
    log.fail("the server responds with status 503")
    assert judged(log, end_s=2).notes == (
        "1 read failed, the last one: the server responds with status 503",
    )
    for _ in range(9):
        log.fail("there was no page within 5 s")
    assert judged(log).problem == "10 of 13 reads failed: there was no page within 5 s"


def test_decreasing_average_is_not_a_restart() -> None:
    rng = random.Random(3)
    pages = ({"busy_slots_per_decode": rng.random(), TOKENS: float(s)} for s in range(21))
    assert judged(source(pages)).is_used
