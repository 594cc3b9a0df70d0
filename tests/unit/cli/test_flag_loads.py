"""The load that flags make: its end, rates and schedules."""

import shlex
from pathlib import Path

import pytest

from aiperf_svc.config.load_shapes import RatePoint
from aiperf_svc.domain.errors import ConfigError
from tests.support.flag_configs import (
    CLOSED,
    RATES,
    REPLAY,
    TARGET,
    TRACE,
    config,
    draft,
    load_of,
    refusal,
)

REPLAYED = shlex.join(REPLAY)


def test_closed_loop_defaults_to_ten_requests_per_user() -> None:
    made = draft(*CLOSED)
    assert load_of(made).requests == 20
    assert made.notices == [
        "neither --request-count nor --benchmark-duration: 20 requests (10 for each of 2 users)"
    ]


def test_default_load_has_one_user() -> None:
    made = draft(*TARGET)
    load = load_of(made)
    assert (load.concurrency, load.requests) == (1, 10)
    assert made.notices == [
        "neither --concurrency nor --request-rate: one user (--concurrency 1)",
        "neither --request-count nor --benchmark-duration: 10 requests (10 for one user)",
    ]


def test_trace_without_a_load_is_replayed() -> None:
    load = config(*TARGET, *TRACE).load
    assert (load.concurrency, load.fixed_schedule) == (None, True)
    load = config(*TARGET, *TRACE, "--no-fixed-schedule").load
    assert (load.concurrency, load.fixed_schedule) == (1, False)
    load = config(*TARGET, *TRACE, "--concurrency", "2").load
    assert (load.concurrency, load.fixed_schedule) == (2, False)


@pytest.mark.parametrize(
    "flags",
    [
        ("--fixed-schedule-auto-offset",),
        ("--fixed-schedule-start-offset", "2000", "--concurrency", "8"),
        ("--replay-speedup", "2"),
    ],
)
def test_schedule_flag_enables_the_fixed_schedule(flags: tuple[str, ...]) -> None:
    assert config(*TARGET, *TRACE, *flags).load.fixed_schedule


@pytest.mark.parametrize(
    ("flags", "users", "requests"),
    [
        (("--concurrency", "8"), 8, 80),
        (("--concurrency", "8", "--request-count", "20"), 8, 20),
        (("--request-count", "20"), 20, 20),
        (("--num-prompts", "30"), 30, 30),
        ((), 1_000, 1_000),
    ],
)
def test_unlimited_rate_is_a_closed_loop(flags: tuple[str, ...], users: int, requests: int) -> None:
    load = config(*TARGET, "--request-rate", "inf", *flags).load
    assert (load.request_rate, load.concurrency, load.requests) == (None, users, requests)


def test_unlimited_rate_of_a_time_alone_is_refused() -> None:
    assert refusal(*TARGET, "--request-rate", "inf", "--duration", "5s") == (
        "--request-rate: inf sends all requests at once; set their number with --request-count, or "
        "a limit with --concurrency"
    )


def test_unlimited_rate_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text("{endpoint: {url: http://h, model: m}, load: {request_rate: inf, requests: 5}}")
    expected = f"{path}: load.request_rate: 'inf': expected a finite number"
    assert refusal("--config", str(path)) == expected


@pytest.mark.parametrize(
    "flags",
    [REPLAY, ("--stages", "5:2s"), ("--rate-series", str(RATES))],
    ids=lambda flags: flags[0],
)
def test_scheduled_load_ends_with_its_schedule(flags: tuple[str, ...]) -> None:
    made = draft(*TARGET, *flags)
    load = load_of(made)
    assert (load.requests, load.duration, made.notices) == (None, None, [])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("0,1\n5", "{file}:2: '5': expected SECONDS,RATE such as 60,12.5"),
        ("0,1\n5,x", "{file}:2: '5,x': expected SECONDS,RATE such as 60,12.5"),
        ("1,1\n5,2", "expected points in the order of their times, the first at 0s"),
        ("0,1\n5,2\n4,2", "expected points in the order of their times, the first at 0s"),
        ("0,0\n5,0", "every rate is 0; nothing would be sent"),
    ],
)
def test_bad_rate_file_is_refused_in_one_line(tmp_path: Path, content: str, line: str) -> None:
    file = tmp_path / "rates.csv"
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        draft(*TARGET, "--rate-series", str(file)).parse()
    assert str(raised.value) == f"--rate-series: {line.format(file=file)}"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            f"{REPLAYED} --request-rate 5",
            "--request-rate and --fixed-schedule both define when requests are sent; set one of "
            "them",
        ),
        (
            f"{REPLAYED} --ramp-duration 5",
            "--ramp-duration and --fixed-schedule both define when requests are sent; set one of "
            "them",
        ),
        (
            f"{REPLAYED} --fixed-schedule-auto-offset --fixed-schedule-start-offset 0",
            "--fixed-schedule-auto-offset and --fixed-schedule-start-offset both set the start of "
            "the schedule; leave out one of them",
        ),
        (
            f"{REPLAYED} --fixed-schedule-start-offset 9 --fixed-schedule-end-offset 8",
            "--fixed-schedule-end-offset 8ms is before --fixed-schedule-start-offset 9ms",
        ),
        (
            f"{REPLAYED} --fixed-schedule-end-offset -8",
            '--fixed-schedule-end-offset: \'-8ms\': expected a duration such as "250ms", "30s" or '
            '"5m"',
        ),
        (
            f"{REPLAYED} --warmup-request-count 5 --warmup-ramp-duration 2s",
            "--warmup-ramp-duration needs --warmup-request-rate: without one the warmup follows "
            "--fixed-schedule too",
        ),
        (f"{REPLAYED} --replay-speedup 0", "--replay-speedup: '0': expected a number above 0"),
        ("--concurrency 1 --replay-speedup 2", "--replay-speedup needs --fixed-schedule"),
        (
            "--stages 5:2s --request-rate 9",
            "--request-rate and --stages both define when requests are sent; set one of them",
        ),
        ("--stages 5", "--stages: '5': expected RATE:TIME such as 10:30s"),
        (
            "--fixed-schedule",
            "--fixed-schedule needs the times of a trace, and --custom-dataset-type is synthetic; "
            "expected mooncake_trace, bailian_trace, burst_gpt_trace, azure_trace",
        ),
        (
            f"{REPLAYED} --dataset-order shuffled",
            "--dataset-order shuffled: --fixed-schedule sends the rows in the order of their "
            "times; leave it out",
        ),
    ],
)
def test_flags_that_contradict_a_replay_are_refused(message: str, line: str) -> None:
    assert refusal(*TARGET, *shlex.split(message)) == line


def test_open_loop_defaults_to_ten_seconds() -> None:
    made = draft(*TARGET, "--request-rate", "2.55")
    assert load_of(made).requests == 26
    assert "(10 s at 2.55 requests/s)" in made.notices[0]


@pytest.mark.parametrize("end", [("--request-count", "3"), ("--benchmark-duration", "3s")])
def test_configured_end_has_no_default(end: tuple[str, str]) -> None:
    made = draft(*CLOSED, *end)
    load = load_of(made)
    assert (load.requests, load.duration) in ((3, None), (None, 3 * 10**9))
    assert made.notices == []


@pytest.mark.parametrize("wrap", ['{{"points": {}}}', "{}"])
def test_a_rate_series_may_be_aiperfs_json(tmp_path: Path, wrap: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(wrap.format('[{"time_s": 0, "qps": 5}, {"time_s": 2.5, "qps": 20.5}]'))
    made = config(*TARGET, "--rate-series", str(file)).load.rate_series
    assert made == (RatePoint(at=0, rate=5), RatePoint(at="2.5s", rate=20.5))  # type: ignore[arg-type]
    file.write_text('[{"seconds": 1}]')
    assert 'expected [{"time_s": 0, "qps": 10}, ...]' in refusal(
        *TARGET, "--rate-series", str(file)
    )
