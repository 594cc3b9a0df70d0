"""Pages that are copies of others are detected, so that no server counts twice."""

from collections.abc import Mapping

import pytest

from aiperf_svc.core.telemetry.duplicate_sources import CopyFinder, without_copies
from aiperf_svc.core.telemetry.log import Mark, SourceLog
from aiperf_svc.core.telemetry.page import PageReader, Series
from aiperf_svc.core.telemetry.series import server_load
from aiperf_svc.core.telemetry.sources import judge_sources
from tests.support.fake_sources import at, source

RUNNING = {"vllm:num_requests_running": 3.0}
SUM = "vllm:time_to_first_token_seconds_sum"
START = "process_start_time_seconds"
CREATED = "vllm:prompt_tokens_created"


def page(
    name: str, values: Mapping[str, float], *, is_guess: bool = False, is_gpu: bool = False
) -> SourceLog:
    log = SourceLog(f"http://{name}/metrics", is_gpu=is_gpu, is_guess=is_guess)
    text = "".join(f"{name} {value}\n" for name, value in values.items())
    log.add(PageReader().read(text), wall_ns=at(1), latency_ns=1)
    return log


@pytest.mark.parametrize(
    "marks",
    [
        {CREATED: 1795404091.858461},
        {CREATED: 1795404091.858461, START: 1795404090.29, SUM: 2.5},
        {SUM: 30.04026},
        {START: 1795404090.29, SUM: 30.04026},
        {"llamacpp:prompt_seconds_total": 1.31925},
        {"nv_inference_request_duration_us": 8812345},
    ],
)
def test_server_with_unique_values_is_counted_once(marks: dict[str, float]) -> None:
    pages = [page(name, RUNNING | marks) for name in ("10.0.0.1", "10.0.0.2")]
    assert server_load(pages).running == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({"vllm:generation_tokens_total": 500}, {"vllm:generation_tokens_total": 500}),
        ({SUM: 0.0}, {SUM: 0.0}),
        ({SUM: 30.04026}, {SUM: 30.04027}),
        ({SUM: 30.0, CREATED: 1795404091.858461}, {SUM: 30.0, CREATED: 1795404091.858462}),
        ({SUM: 30.0, START: 1795404090.29}, {SUM: 30.0, START: 1795404090.3}),
        ({START: 1795404090.29}, {START: 1795404090.29}),
        ({"http_request_duration_seconds_sum": 1.5}, {"http_request_duration_seconds_sum": 1.5}),
    ],
)
def test_replicas_with_the_same_counts_are_counted_each(
    one: dict[str, float], other: dict[str, float]
) -> None:
    pages = [page(name, RUNNING | marks) for name, marks in (("a", one), ("b", other))]
    assert server_load(pages).running == 6


def spent(name: str, *values: float, first_s: float = 0.0) -> SourceLog:
    """Return a source with one page per second that has these times spent on requests."""
    pages = [RUNNING | {SUM: value} for value in values]
    return source(pages, url=f"http://{name}/metrics", first_s=first_s)


def test_pages_equal_before_the_load_are_one_server() -> None:
    one = spent("a", 0.0, 2.513, 2.513, 9.124, 17.25)
    other = spent("b", 0.0, 2.513, 2.513, 9.5, 18.75, first_s=0.4)
    assert without_copies([one, other]) == [one]
    third = spent("c", 0.0, 2.514, 2.514, 9.125, 17.5)
    assert without_copies([one, other, third]) == [one, third]


def test_page_equal_to_one_copy_is_that_server() -> None:
    one, other = spent("a", 2.5, 9.124, 17.25), spent("b", 2.5, 9.5, 18.75)
    third = spent("c", 2.25, 9.5, 19.5)
    assert without_copies([one, third, other]) == [one]


def test_replicas_with_shifted_times_count_separately() -> None:
    one, other = spent("a", 30.0, 31.0, 32.0), spent("b", 30.0, 31.5, 33.0, first_s=60)
    assert without_copies([one, other]) == [one, other]


def test_copy_finder_remembers_earlier_matches() -> None:
    finder = CopyFinder()
    one, other = spent("a", 2.5), spent("b", 2.5)
    assert without_copies([one, other], finder) == [one]
    for index, log in enumerate((one, other)):
        text = f"{SUM} {9.0 + index}\nvllm:num_requests_running 3\n"
        log.add(PageReader().read(text), wall_ns=at(2), latency_ns=1)
    assert without_copies([one, other], finder) == [one]
    assert server_load([one, other], finder).running == 3


@pytest.mark.parametrize("mark", [CREATED, SUM])
def test_comparisons_per_page_do_not_grow_with_replicas(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = [page(f"10.0.0.{n}", RUNNING | {mark: 1795404091.0 + n}) for n in range(200)]
    looked_at: list[SourceLog] = []
    marks = SourceLog.marks

    def counted(log: SourceLog, mark: Mark) -> dict[Series, float]:
        looked_at.append(log)
        return marks(log, mark)

    monkeypatch.setattr(SourceLog, "marks", counted)
    assert without_copies(replicas) == replicas
    assert len(looked_at) <= 4 * len(replicas)


def test_zero_time_counters_identify_no_copy() -> None:
    begin = {SUM: 0.0}
    one, other = (
        source([RUNNING | begin, RUNNING | {SUM: last}], url=f"http://{last}/metrics")
        for last in (1.5, 1.75)
    )
    assert without_copies([one, other]) == [one, other]


@pytest.mark.parametrize("label", ["instance", "server"])
def test_own_page_is_ignored_beside_federated_page(label: str) -> None:
    several = {f'vllm:num_requests_running{{{label}="{name}"}}': 3.0 for name in "ab"}
    federation = page("prometheus", several)
    own = page("target", RUNNING, is_guess=True)
    assert without_copies([own, federation]) == [federation]
    # A router reports its servers by label, and they are also configured.
    router = page("router", several, is_guess=True)
    replicas = [page(name, RUNNING) for name in "ab"]
    assert without_copies([router, *replicas]) == replicas


def test_explicitly_named_pages_are_both_counted() -> None:
    several = page("prometheus", {'vllm:num_requests_running{instance="a"}': 3.0})
    assert server_load([several, page("target", RUNNING)]).running == 6


def test_page_counted_under_another_url_is_reported() -> None:
    pages = [{**RUNNING, SUM: float(second)} for second in range(21)]
    guess = source(pages, url="http://127.0.0.1/metrics")
    guess.is_guess = True
    named = source(pages, url="http://10.0.0.1/metrics")
    first, second = judge_sources([guess, named], begin_ns=at(0), end_ns=at(20), interval_s=1.0)
    assert first.problem == "its servers are on http://10.0.0.1/metrics too and are counted once"
    assert second.is_used
