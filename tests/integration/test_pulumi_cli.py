"""Calls of the Pulumi CLI, with a fake program in its place."""

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.pulumi.cli import Lock, PulumiCli, PulumiFailed, is_locked
from aiperf_svc.domain.errors import EnvironmentProblem

FAKE = """#!{python}
import json, os, signal, subprocess, sys, time
calls = open("calls", "a")
def log(text):
    calls.write(text + "\\n"); calls.flush()
log(" ".join(sys.argv[1:3]) + f" sid={{os.getsid(0) == os.getppid()}}")
if "select" in sys.argv:
    open("stack", "w")
if {{"export", "output", "get"}} & set(sys.argv) and not os.path.exists("stack"):
    print("error: no stack named 's' found", file=sys.stderr); sys.exit(1)
if "export" in sys.argv:
    print('{{"version": 3}}')
if "set" in sys.argv:
    log("stdin " + sys.stdin.read())
    log(f"argv {{sys.argv}}")
if "get" in sys.argv:
    if "aiperf:locked" in sys.argv:
        print("error: incorrect passphrase", file=sys.stderr); sys.exit(1)
    print("the key")
if "rm" in sys.argv:
    os.unlink("stack")
if "cancel" in sys.argv:
    os.unlink("locked")
if "up" in sys.argv and os.path.exists("locked"):
    print("error: locked by 1 lock(s)\\n  f: created by me@here (pid 41) at x", file=sys.stderr)
    sys.exit(255)
if "up" in sys.argv:
    ended = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, frame: ended.append(log("got " + signal.Signals(n).name)))
    # A file like that of the Kubernetes provider, and a plugin in its own process group.
    open(os.path.join(os.environ["TMPDIR"], "kubeconfig1"), "w").write("key")
    plugin = subprocess.Popen(["sleep", "300"], process_group=0)
    log(f"tmp {{os.environ['TMPDIR']}}")
    log(f"pids {{os.getppid()}} {{os.getpid()}} {{plugin.pid}}")
    with open(sys.argv[sys.argv.index("--event-log") + 1], "a") as events:
        events.write(json.dumps({{"sequence": 0}}) + "\\n"); events.flush()
        while not ended:
            signal.pause()
        while "linger" in os.environ and not os.path.exists(os.environ["linger"]):
            time.sleep(0.01)
        print("@ updating....")
        events.write(json.dumps({{"sequence": 1}}) + "\\n")
    sys.exit(255)
"""


@pytest.fixture
def cli(tmp_path: Path) -> PulumiCli:
    return cli_in(tmp_path)


def cli_in(folder: Path, **more: Any) -> PulumiCli:
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "pulumi"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    for name in ("logs", "private"):
        (folder / name).mkdir(exist_ok=True)
    environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    environ |= {name: value for name, value in os.environ.items() if name == "linger"}
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    _locks.append(lock)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return PulumiCli(
        folder=folder, stack="s", environ=environ, logs=folder / "logs",
        private=folder / "private", held=(lock,), **more,
    )  # fmt: skip


_locks: list[int] = []


@pytest.fixture(autouse=True)
def _close_locks() -> Iterator[None]:
    yield
    while _locks:
        os.close(_locks.pop())


async def test_interrupted_command_gets_one_signal_and_ends(cli: PulumiCli, tmp_path: Path) -> None:
    stop, events = asyncio.Event(), []

    def on_event(event: dict[str, Any]) -> None:
        events.append(event["sequence"])
        stop.set()

    ended = await cli.up(on_event, stop=stop)
    assert (ended.code, events) == (255, [0, 1])
    assert (tmp_path / "calls").read_text().splitlines()[0] == "up -y sid=True"
    assert logged(tmp_path, "got") == ["SIGINT"]


async def test_output_of_a_failed_up_is_kept(cli: PulumiCli, tmp_path: Path) -> None:
    stop = asyncio.Event()
    ended = await cli.up(lambda event: stop.set(), stop=stop)
    assert (ended.code, ended.reason) == (255, "no reason given")
    (kept,) = (tmp_path / "logs").iterdir()
    assert (kept.name, kept.read_text()) == ("pulumi-1-up.out.log", "@ updating....\n")


async def test_early_stop_ends_the_command(tmp_path: Path) -> None:
    cli, stop = cli_in(tmp_path), asyncio.Event()
    # Not Python, which may lose a signal during startup.
    (tmp_path / "bin" / "pulumi").write_text("#!/bin/sh\nexec sleep 300\n")
    stop.set()
    for _ in range(20):
        ended = await cli.up(lambda event: None, stop=stop)
        assert ended.killed_by == signal.SIGINT


async def test_unknown_stack_is_no_error(cli: PulumiCli) -> None:
    assert await cli.export() == await cli.outputs() == {}
    await cli.add()


async def test_output_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    cli = cli_in(tmp_path)
    (tmp_path / "bin" / "pulumi").write_text("#!/bin/sh\necho {\n")
    with pytest.raises(PulumiFailed, match="stack export` failed: its output is not JSON: "):
        await cli.export()


async def test_secret_is_neither_argument_nor_file(cli: PulumiCli, tmp_path: Path) -> None:
    await cli.set_secret("targetApiKey", "the key")
    calls = (tmp_path / "calls").read_text()
    assert "stdin the key" in calls
    assert "the key" not in calls.partition("argv")[2]
    assert not any("the key" in path.read_text() for path in (tmp_path / "logs").iterdir())


async def test_secret_is_read_without_a_file_or_named(cli: PulumiCli, tmp_path: Path) -> None:
    await cli.add()
    assert await cli.values(["uploadKey"]) == {"uploadKey": "the key"}
    assert not any("the key" in path.read_text() for path in (tmp_path / "logs").iterdir())
    with pytest.raises(PulumiFailed, match="config get aiperf:locked` failed: incorrect pass"):
        await cli.values(["locked"])
    assert await cli.export()


async def test_values_of_an_unknown_stack_are_read(cli: PulumiCli) -> None:
    assert await cli.values(["uploadKey"]) == {"uploadKey": "the key"}
    assert await cli.export() == {}
    with pytest.raises(PulumiFailed, match="incorrect pass"):
        await cli.values(["locked"])
    assert await cli.export() == {}


async def test_missing_cli_is_named_with_a_remedy(tmp_path: Path) -> None:
    cli = PulumiCli(folder=tmp_path, stack="s", environ={"PATH": ""}, logs=tmp_path)
    with pytest.raises(EnvironmentProblem, match="install it"):
        await cli.export()


@pytest.mark.parametrize("may", [True, False])
async def test_stale_lock_is_removed_and_command_retried(tmp_path: Path, may: bool) -> None:
    (tmp_path / "locked").touch()
    pids: list[int] = []

    async def take_over(locks: Sequence[Lock]) -> bool:
        pids.extend(each.pid for each in locks)
        return may

    stop = asyncio.Event()
    ended = await cli_in(tmp_path, take_over=take_over).up(lambda event: stop.set(), stop=stop)
    assert pids == [41]
    assert is_locked(ended) is not may
    assert (tmp_path / "locked").exists() is not may


# --- kills ---------------------------------------------------------------------------------------

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux process interfaces")
RUNNER = """
import asyncio, os, sys, threading
from pathlib import Path
from tests.integration.test_pulumi_cli import cli_in
for _ in range(int(sys.argv[2])):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
cli = cli_in(Path(sys.argv[1]))
asyncio.run(cli.up(lambda e: print("up", flush=True), stop=asyncio.Event()))
"""


@contextlib.contextmanager
def runner_of(folder: Path, *, threads: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Start a runner whose `up` does not end."""
    with subprocess.Popen(
        (sys.executable, "-c", RUNNER, str(folder), str(threads)),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "up\n"
        yield runner


def logged(folder: Path, what: str) -> list[str]:
    """Return the words that the fake CLI logged after `what`."""
    lines = (folder / "calls").read_text().splitlines()
    return [word for line in lines if line.startswith(f"{what} ") for word in line.split()[1:]]


@contextlib.contextmanager
def ended_of(pids: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until all of these processes have ended."""
    with contextlib.ExitStack() as stack:
        descriptors = [os.pidfd_open(int(pid)) for pid in pids]
        for each in descriptors:
            stack.callback(os.close, each)

        def wait() -> None:
            for each in descriptors:
                assert select.select([each], [], [], 30.0)[0], "a process has not ended"

        yield wait


@LINUX
@pytest.mark.parametrize("threads", [0, 40])
def test_killed_runners_cli_is_terminated_once(tmp_path: Path, threads: int) -> None:
    private = tmp_path / "private"
    with runner_of(tmp_path, threads=threads) as runner, ended_of(logged(tmp_path, "pids")) as wait:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        wait()
    assert logged(tmp_path, "got") == ["SIGTERM"]
    assert logged(tmp_path, "tmp")[0].startswith(f"{private}/")
    assert not private.exists()


@LINUX
def test_locks_are_held_until_the_orphaned_cli_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("linger", str(tmp_path / "go"))
    with runner_of(tmp_path) as runner, ended_of(logged(tmp_path, "pids")) as wait:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        with (tmp_path / "lock").open("a") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert (tmp_path / "private").exists()
            (tmp_path / "go").touch()
            wait()
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@LINUX
async def test_plugins_end_with_a_killed_cli(tmp_path: Path) -> None:
    cli = cli_in(tmp_path)
    with contextlib.ExitStack() as stack:

        def kill(event: dict[str, Any]) -> None:
            waits.append(stack.enter_context(ended_of(logged(tmp_path, "pids"))))
            os.kill(int(logged(tmp_path, "pids")[1]), signal.SIGKILL)

        waits: list[Callable[[], None]] = []
        ended = await cli.up(kill, stop=asyncio.Event())
        waits[0]()
    assert "killed by signal 9" in ended.reason
    assert not list((tmp_path / "private").iterdir())


@LINUX
async def test_cli_of_killed_supervisor_ends_and_is_awaited(tmp_path: Path) -> None:
    cli = cli_in(tmp_path)
    with contextlib.ExitStack() as stack:

        def kill(event: dict[str, Any]) -> None:
            if not waits:
                waits.append(stack.enter_context(ended_of(logged(tmp_path, "pids"))))
                os.kill(int(logged(tmp_path, "pids")[0]), signal.SIGKILL)

        waits: list[Callable[[], None]] = []
        ended = await cli.up(kill, stop=asyncio.Event())
        waits[0]()
    assert (ended.killed_by, logged(tmp_path, "got")) == (signal.SIGKILL, ["SIGTERM"])
    assert not list((tmp_path / "private").iterdir())


@LINUX
async def test_signals_to_supervisor_do_not_reach_cli(tmp_path: Path) -> None:
    cli, stop = cli_in(tmp_path), asyncio.Event()

    def signal_it(event: dict[str, Any]) -> None:
        if stop.is_set():
            return
        supervisor = int(logged(tmp_path, "pids")[0])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(supervisor, number)
        stop.set()

    await cli.up(signal_it, stop=stop)
    assert logged(tmp_path, "got") == ["SIGINT"]
