"""A tool on ranks of this machine: its measurements, its failures, and its leftovers."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.ports import free_port
from tests.support.running_command import (
    Command,
    artifacts,
    assert_only_the_user_reads,
    wait_ended,
    wait_for,
    wait_gone,
)

SPEED = {"speed": {"unit": "ops/s", "better": "higher", "pattern": r"speed: (\d+)"}}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Return a function that starts a command workload. Checks that no process is left."""
    started: list[Command] = []

    def run(script: str, *, repetitions: int = 1, ranks_on: Any = None, **keys: Any) -> Command:
        workload = {"kind": "command", "command": ["sh", "-c", script], "metrics": SPEED, **keys}
        deployment = {"ranks": ranks_on or {}}
        config = {"workload": workload, "repetitions": repetitions, "deployment": deployment}
        path = tmp_path / "input.jsonl"  # The only expected name besides the artifacts.
        path.write_text(json.dumps(config))
        started.append(Command(tmp_path, None, "--config", str(path)))
        return started[-1]

    yield run
    for command in started:
        command.process.kill()
        command.process.communicate()
        command.assert_nothing_is_left()


def steps_of(printed: dict[str, Any]) -> list[tuple[str, int, int, str]]:
    steps = printed["results"]["steps"]
    return [(s["name"], s["repetition"], s["attempt"], s["problem"]) for s in steps]


def test_metrics_and_files_of_every_repetition_are_kept(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    script = "cat hello.txt; echo speed: $((AIPERF_RANK + 2)); echo done >out.log"
    command = start(
        script, repetitions=2, ranks=2, files={"hello.txt": "hello\n"}, keep=["*.log"],
        metrics={"speed": {**SPEED["speed"], "combine": "sum"}},
    )  # fmt: skip
    printed = command.finish()
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    (metric,) = printed["results"]["metrics"]
    assert [value["value"] for value in metric["values"]] == [5.0, 5.0]
    folder = artifacts(tmp_path)
    assert (folder / "raw/001-command/rank-1/command-1/stdout").read_text() == "hello\nspeed: 3\n"
    assert (folder / "raw/002-command/rank-0/command-0/out.log").read_text() == "done\n"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.yaml", "manifest.json", "raw", "report.html", "results.csv", "results.json",
        "verdict.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo broken >&2; exit 3", "sh ended with code 3: broken"),
        ("echo garbage", "nothing found; it ends with 'garbage"),
        ("kill -9 $$", "sh ended by signal 9"),
        ("no_such_tool --version", "sh ended with code 127"),
    ],
)
def test_failed_step_has_reason_and_output(
    start: Callable[..., Command], tmp_path: Path, script: str, reason: str
) -> None:
    command = start(script)
    printed = command.finish()
    assert command.code == ExitCode.BENCHMARK_FAILED, command.errors
    ((_, _, _, problem),) = steps_of(printed)
    assert reason in problem
    assert printed["exit_code"] == command.code
    assert printed["reason"].startswith("step ")
    assert printed["results"]["verdict"] == "invalid"
    assert (artifacts(tmp_path) / "raw/001-command").is_dir()


def test_tool_gets_the_users_environment_only(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    command = start("env; umask; echo speed: 1", env={"GIVEN": " kept "})
    command.finish()
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    printed = (artifacts(tmp_path) / "raw/001-command/rank-0/command-0/stdout").read_text()
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert {name for name in names if name.startswith("AIPERF_")} == {
        "AIPERF_ADDRESSES", "AIPERF_RANK", "AIPERF_RANKS", "AIPERF_VOLUME",
    }  # fmt: skip
    assert not names & {"OPENBLAS_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert "GIVEN= kept " in printed.splitlines()
    os.umask(mask := os.umask(0))
    assert f"{mask:04o}" in printed.splitlines()
    assert_only_the_user_reads(artifacts(tmp_path))


def test_tool_that_hangs_is_ended_after_its_timeout(start: Callable[..., Command]) -> None:
    command = start("sleep 1000", timeout="1s")
    printed = command.finish()
    assert command.code == ExitCode.BENCHMARK_FAILED, command.errors
    assert "still running after 1 s" in steps_of(printed)[0][3]


def test_output_beyond_the_limit_ends_the_step(start: Callable[..., Command]) -> None:
    command = start("exec yes", output_limit="1Mi", timeout="60s")
    printed = command.finish()
    assert command.code == ExitCode.BENCHMARK_FAILED, command.errors
    assert "more than workload.output_limit (1,048,576)" in steps_of(printed)[0][3]


def test_failed_step_is_retried_as_configured(start: Callable[..., Command]) -> None:
    script = 'if [ -e "$AIPERF_VOLUME/tried" ]; then echo speed: 1; else '
    script += 'echo >"$AIPERF_VOLUME/tried"; exit 1; fi'
    command = start(script, retries=1)
    printed = command.finish()
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    assert [(attempt, bool(problem)) for _, _, attempt, problem in steps_of(printed)] == [
        (1, True),
        (2, False),
    ]


def test_host_path_keeps_nothing_of_a_run(
    start: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = tmp_path_factory.mktemp("disk")
    (disk / "others").write_text("speed: 7\n")
    script = 'echo >>"$AIPERF_VOLUME/data"; ls "$AIPERF_VOLUME"; cat "$AIPERF_VOLUME/../others"'
    volume = {"kind": "host-path", "path": str(disk)}
    command = start(script, repetitions=2, ranks_on={"volume": volume})
    printed = command.finish()
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    (metric,) = printed["results"]["metrics"]
    assert [value["value"] for value in metric["values"]] == [7.0, 7.0]
    assert [path.name for path in disk.iterdir()] == ["others"]


def test_background_processes_of_a_command_are_ended(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    command = start(f"sleep 1000 & echo $! >{tmp_path}/tmp/pid; echo speed: 1")
    command.finish()
    pid = int((tmp_path / "tmp/pid").read_text())
    (tmp_path / "tmp/pid").unlink()
    wait_ended(pid)


def test_daemon_of_a_command_is_ended(start: Callable[..., Command], tmp_path: Path) -> None:
    own = tmp_path / "tmp/pid"
    command = start(f"setsid sh -c 'sleep 1000 & echo $! >{own}'; echo speed: 1")
    command.finish()
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    pid = int(own.read_text())
    own.unlink()
    wait_ended(pid)


def test_interrupt_ends_the_step_and_keeps_its_output(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    begun = tmp_path / "tmp/begun"
    command = start(f"echo partial; echo >{begun}; sleep 1000")
    wait_for(begun.exists)
    begun.unlink()
    command.process.send_signal(signal.SIGINT)
    printed = command.finish()
    assert command.code == ExitCode.INTERRUPTED, command.errors
    assert printed["results"]["was_cancelled"]
    kept = artifacts(tmp_path) / "raw/001-command/rank-0/command-0/stdout"
    assert kept.read_text() == "partial\n"


def test_killed_courier_fails_run_and_ends_command(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    begun = tmp_path / "tmp/begun"
    command = start(f"echo $$ >{begun}.part; mv {begun}.part {begun}; sleep 1000", ranks=1)
    wait_for(begun.exists)
    tool = os.pidfd_open(int(begun.read_text()))
    begun.unlink()
    os.kill(command.service("rank-0"), signal.SIGKILL)
    wait_gone(tool)
    command.finish()
    assert command.code == ExitCode.BENCHMARK_FAILED, command.errors
    assert "the run failed: command: rank 0 was lost" in command.errors


def test_killed_runner_leaves_no_process(start: Callable[..., Command], tmp_path: Path) -> None:
    own = f"{tmp_path}/tmp/begun-$AIPERF_RANK"
    command = start(f"echo $$ >{own}.part; mv {own}.part {own}; sleep 1000", ranks=2)
    begun = [tmp_path / f"tmp/begun-{rank}" for rank in range(2)]
    for path in begun:
        wait_for(path.exists)
    tools = [int(path.read_text()) for path in begun]
    gone = [os.pidfd_open(pid) for pid in (*command.processes(), *tools)]
    for path in begun:
        path.unlink()
    command.process.kill()
    command.process.wait()
    wait_gone(*gone)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("iperf",), "iperf3, which is not on this machine; install the Debian package iperf3"),
        (("iperf", "--concurrency", "3"), "--concurrency: for inference servers only"),
        (("command", r'files={a: "\d"}'), "--workload files="),
        (("command", r'files={a: "\d"}'), "unknown escape character"),
    ],
)
def test_impossible_workload_is_refused_in_words(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    command = Command(tmp_path, None, "--workload", *flags, PATH="/nowhere")
    command.finish()
    assert command.code == ExitCode.BAD_CONFIG
    assert message in command.errors


LIAR = """#!{python}
import pathlib, socket, sys, time
here = pathlib.Path({recorded!r})
port = int(sys.argv[sys.argv.index("-p") + 1])
if "-s" in sys.argv:
    socket.create_server(("127.0.0.1", port)).accept()
else:
    socket.create_connection(("127.0.0.1", port)).close()
time.sleep(4)
end = "server" if "-s" in sys.argv else "client"
print((here / f"iperf3-3.12-tcp-{{end}}.json").read_text())
"""


def test_unseen_bytes_of_a_tool_are_not_trusted(tmp_path: Path) -> None:
    tools = tmp_path / "tmp/tools"
    tools.mkdir(parents=True)
    recorded = Path(__file__).parents[1] / "unit/workloads/recorded/iperf"
    (tools / "iperf3").write_text(LIAR.format(python=sys.executable, recorded=str(recorded)))
    (tools / "iperf3").chmod(0o755)
    keys = ("duration=3s", "omit=1s", "streams=2", f"port={free_port()}")
    path = f"{tools}:{os.environ['PATH']}"
    command = Command(tmp_path, None, "--workload", "iperf", *keys, PATH=path)
    results = command.finish()["results"]
    assert command.code == ExitCode.VERDICT_INVALID, command.errors
    assert results["steps"][0]["problem"] == ""
    bad = {check["check"] for check in results["checks"] if check["severity"] == "invalid"}
    assert "interface-bytes" in bad
    assert results["cause"] == "bytes-differ"
