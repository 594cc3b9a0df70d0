"""The live display depends only on the status of the run."""

import io
from typing import Any

import pytest
from rich.console import Console

from aiperf_svc.adapters.results_api.status import (
    ExperimentStatus,
    LiveObjective,
    ShownTrial,
    Status,
    StepStatus,
)
from aiperf_svc.adapters.terminal.live_display import LiveDisplay
from aiperf_svc.adapters.terminal.screens import Plain
from aiperf_svc.adapters.terminal.status_text import (
    final_line,
    in_flight,
    plain_line,
    remaining_s,
    share_done,
    short_names,
    trial_line,
)
from aiperf_svc.plan.topology import Group, Topology
from aiperf_svc.protocol.services import Service
from tests.support.fake_results_api import make_status

TOPOLOGY = Topology("compact", (Group("worker", (Service.WORKER,), 3),), 3, 1, "proxy")


UNKNOWN = dict.fromkeys(
    (
        *("ttft_p50_ms", "ttft_p99_ms", "latency_p50_ms", "output_tokens_per_s"),
        *("requested_requests", "requested_duration_s", "server_running", "server_waiting"),
    )
)


def status(**fields: Any) -> Status:
    return make_status(**{**UNKNOWN, **fields})


def drawn(now: Status, *, width: int, title: str = "knee") -> str:
    """Return the live display on a terminal with this many columns."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    display = LiveDisplay(title, TOPOLOGY, console)
    drawing = display._render(now)
    display.close()
    with console.capture() as capture:
        console.print(drawing)
    return capture.get()


def test_requests_on_the_server_are_shown() -> None:
    assert in_flight(status(in_flight=1_200)) == "1,200"
    assert in_flight(status(in_flight=8, server_running=8.0)) == "8 (server 8)"
    assert in_flight(status(in_flight=8, server_running=5.0, server_waiting=3.0)) == (
        "8 (server 5 + 3 waiting)"
    )
    assert "8 (server 8) in flight" in plain_line(status(in_flight=8, server_running=8.0))


def test_progress_counts_requests_with_any_outcome() -> None:
    assert share_done(status(requested_requests=10, completed=3, errored=1, cancelled=1)) == 0.5


def test_steps_show_name_and_time() -> None:
    steps = StepStatus(
        workload="iperf", total=4, ended=1, failed=1, name="a to b", stage="run",
        running_s=3.0, expected_s=6.0, text="9 Gbit/s",
    )  # fmt: skip
    assert share_done(status(steps=steps)) == 0.375
    line = plain_line(status(steps=steps, elapsed_s=5.0))
    assert line.endswith("profiling: step 2 of 4, a to b 3.0 s of 6.0 s, 9 Gbit/s, 1 failed")


def test_tool_without_steps_shows_no_requests() -> None:
    steps = StepStatus(
        workload="iperf", total=0, ended=0, failed=0, name="", stage="",
        running_s=0.0, expected_s=0.0, text="",
    )  # fmt: skip
    assert share_done(status(steps=steps)) == 0.0
    assert plain_line(status(steps=steps)).endswith("profiling: planning the steps")


def test_nearest_end_decides_share_and_time_left() -> None:
    now = status(
        requested_requests=100,
        completed=10,
        requests_per_s=10.0,
        requested_duration_s=4.0,
        phase_elapsed_s=3.0,
    )
    assert share_done(now) == 0.75
    assert remaining_s(now) == 1.0


@pytest.mark.parametrize("state", ["pending", "configuring", "draining", "done"])
def test_progress_is_unknown_outside_a_phase(state: str) -> None:
    now = status(state=state, requested_requests=10, completed=3, requests_per_s=1.0)
    assert (share_done(now), remaining_s(now)) == (None, None)


def test_the_time_left_is_unknown_without_a_rate() -> None:
    assert remaining_s(status(requested_requests=10)) is None


def test_a_plain_line_has_the_counts() -> None:
    line = plain_line(
        status(
            elapsed_s=4.2,
            requested_requests=2000,
            completed=1500,
            errored=1,
            in_flight=20,
            requests_per_s=113.44,
            ttft_p50_ms=20.4,
            ttft_p99_ms=1500.0,
            workers_lost=1,
        )
    )
    assert line == (
        "  4.2 s  profiling: 1,500 of 2,000 completed, 1 error, 20 in flight, 113.4 requests/s, "
        "TTFT p50/p99 20.4 ms / 1.50 s, 1 worker lost, 4.4 s left"
    )


def test_errors_show_the_most_frequent_text() -> None:
    refused = "cannot connect to http://127.0.0.1:1: Connection refused"
    now = status(errored=5, main_error=refused)
    assert f"5 errors ({refused}), " in plain_line(now)
    assert f"most errors: {refused}" in drawn(now, width=100)


def test_drain_after_duration_shows_its_limit() -> None:
    now = status(requested_duration_s=6.0, phase_elapsed_s=8.0, in_flight=5, grace_s=30.0)
    draining = "draining: 5 in flight, at most 28.0 s"
    assert plain_line(now).endswith(draining)
    assert draining in drawn(now, width=80)
    ended = status(requested_duration_s=6.0, phase_elapsed_s=8.0, grace_s=30.0)
    assert plain_line(ended).endswith("0.0 s left")


def test_time_left_counts_failed_requests() -> None:
    half = status(requested_requests=40, completed=10, errored=10, requests_per_s=5.0)
    assert remaining_s(half) == 2.0


def test_plain_line_names_the_awaited_service() -> None:
    line = plain_line(status(state="pending", message="waiting for worker-1"))
    assert line.endswith("pending: waiting for worker-1")


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    display = Plain()
    for state in ("pending", "pending", "profiling", "profiling", "profiling"):
        display.show(status(state=state))
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_live_display_leaves_only_notes() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    display = LiveDisplay("bench · model", TOPOLOGY, console)
    display.show(status(state="warmup"))
    display.show(status(requested_requests=200, completed=50, errored=2, in_flight=7, workers=3))
    display.note("worker-1 ended by SIGKILL")
    display.close()
    output = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("bench · model", "starting 3 processes", "✓ warmup", "● measuring", "26%"):
        assert text in output
    for text in ("50 of 200", "worker-1 ended by SIGKILL"):
        assert text in output
    assert output.endswith("\x1b[2K"), "the display is erased at the end"


def test_the_live_display_fits_into_a_narrow_terminal() -> None:
    shown = drawn(
        status(requested_requests=10),
        width=60,
        title="a title that is longer than the terminal is wide" * 2,
    )
    assert max(map(len, shown.splitlines())) <= 60


def test_an_experiment_is_shown_by_its_trials() -> None:
    row = ShownTrial(
        number=2, parameters={"load.concurrency": 4}, repetition=1, attempt=1, state="done",
        reason="", verdict="valid", text="412 requests/s",
    )  # fmt: skip
    experiment = ExperimentStatus(
        number=3, parameters={"load.concurrency": 8}, repetition=1, attempt=1, total=12, ended=2,
        failed=0, left_s=90.0, rows=(row,),
    )  # fmt: skip
    now = status(experiment=experiment, elapsed_s=20.0)
    assert plain_line(now).startswith(" 20.0 s  trial 3 of 12  profiling")
    assert trial_line(row) == "trial 2 (load.concurrency=4) · done · 412 requests/s · verdict valid"
    assert final_line(status(state="done", experiment=experiment)) == "done: 2 trials"
    shown = drawn(now, width=100)
    assert "trial 3 of 12  load.concurrency=8  2 done, about 1:30 left" in shown
    assert "412 requests/s" in shown


def test_key_names_are_shortest_unique_ends() -> None:
    keys = ["load.concurrency", "dataset.input_tokens.mean", "dataset.output_tokens.mean"]
    keys += ["a.rate", "b.rate", "deployment.target.args.1", "rate"]
    assert list(short_names(keys).values()) == [
        "concurrency", "input_tokens.mean", "output_tokens.mean", "a.rate", "b.rate", "args.1",
        "rate",
    ]  # fmt: skip


def test_tokens_server_and_objectives_fit_80_columns() -> None:
    limit: dict[str, Any] = {"stat": "p95", "bound": "max", "limit": 60.0, "unit": "ms"}
    now = status(
        output_tokens_per_s=1_270.4, server_running=5, server_waiting=3, in_flight=8,
        objectives=(
            LiveObjective(metric="time_to_first_token", value=21.52, **limit),
            LiveObjective(metric="request_latency", value=178.0, **limit),
        ),
    )  # fmt: skip
    shown = drawn(now, width=80)
    *_, first, second = (line.rstrip() for line in shown.splitlines())
    assert first == "  output 1,270 tokens/s  server 5 + 3 waiting"
    assert second == "  ✓ TTFT p95 21.52 ≤ 60 ms   ✗ latency p95 178 ≤ 60 ms"


def test_large_numbers_fit_80_columns() -> None:
    limit: dict[str, Any] = {
        "stat": "p95",
        "bound": "max",
        "limit": 6_000.0,
        "unit": "ms",
        "value": 1_234.0,
    }
    metrics = ("time_to_first_token", "request_latency", "inter_token_latency")
    now = status(
        completed=123_456, requested_requests=1_000_000, errored=12, in_flight=12_000, workers=120,
        workers_lost=3, requests_per_s=12_345.6, latency_p50_ms=12_345.0, ttft_p50_ms=1_234.5,
        ttft_p99_ms=9_876.5, requested_duration_s=600.0, phase_elapsed_s=601.0, grace_s=30.0,
        objectives=tuple(LiveObjective(metric=metric, **limit) for metric in metrics),
        experiment=ExperimentStatus(
            number=3, parameters={"dataset.input_tokens.mean": 1_000, "load.request_rate": 36.44},
            repetition=1, attempt=1, total=120, ended=10, failed=1, left_s=1_000.0, rows=(),
        ),
    )  # fmt: skip
    shown = drawn(now, width=80)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for whole in (
        "10 done, 1 failed, about 16:40 left", "draining: 12,000 in flight, at most 29.0 s",
        "requests 123,456 of 1,000,000", "in flight 12,000", "workers 120 (3 lost)",
        "inter_token_latency p95 1,234 ≤ 6,000 ms",
    ):  # fmt: skip
        assert whole in shown


def test_trial_rows_fit_80_columns() -> None:
    parameters = {"load.request_rate": 36.44, "load.duration": "12s"}
    rows = tuple(
        ShownTrial(
            number=number, parameters=parameters, repetition=1, attempt=1, state="done",
            reason="", verdict="degraded", text="36.98 requests/s, 535.3 ms TTFT p99",
        )
        for number in (9, 10)
    )  # fmt: skip
    experiment = ExperimentStatus(
        number=11, parameters=parameters, repetition=1, attempt=1, total=0, ended=10, failed=0,
        left_s=None, rows=rows,
    )  # fmt: skip
    times = {"latency_p50_ms": 269.8, "ttft_p50_ms": 269.8, "ttft_p99_ms": 1_517.2}
    shown = drawn(status(experiment=experiment, requests_per_s=1_239.9, **times), width=80)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  latency p50 269.8 ms  TTFT p50 269.8 ms  TTFT p99 1.52 s    workers 0" in lines[-3]
    for number, line in zip((" 9", "10"), lines[-2:], strict=True):
        assert line.startswith(f"  {number}  request_rate=36.44, ")
        assert "36.98 requests/s, 535.3 ms" in line
        assert line.rstrip().endswith("  degraded")
