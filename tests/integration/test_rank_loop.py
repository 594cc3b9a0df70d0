"""`rank_loop.sh` runs commands while its courier lives, and the courier notices when a container
ends with its commands."""

import asyncio
import os
import select
import signal
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.ranks.launches import open_fifo
from aiperf_svc.adapters.ranks.rank_shell import EVENTS, LOOP, ORDERS, RankShell, make_folder
from aiperf_svc.domain.errors import EnvironmentProblem

ENDED_S = 30.0
Event = tuple[str, int]


@asynccontextmanager
async def loop_in(folder: Path, *how: str, within: Sequence[str] = ()) -> AsyncIterator[Process]:
    """Run the loop without any signal to end it."""
    program = (*within, "sh", str(folder / LOOP.name), str(folder), *how)
    loop = await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)
    try:
        yield loop
    finally:
        if loop.returncode is None:
            loop.kill()
            await loop.wait()


def noted_in(queue: "asyncio.Queue[Event]") -> Callable[[str, int, int], None]:
    return lambda command, number, _wall_ns: queue.put_nowait((command, number))


async def test_loop_and_commands_end_with_a_vanished_courier(tmp_path: Path) -> None:
    make_folder(tmp_path)
    orders, events = open_fifo(tmp_path / ORDERS), open_fifo(tmp_path / EVENTS)
    os.set_blocking(events, True)
    (tmp_path / "commands" / "1-0").mkdir()
    (tmp_path / "commands" / "1-0" / "run.sh").write_text(
        'echo "started 1-0 $$" >&4; exec sleep 1000'
    )
    async with loop_in(tmp_path, "child") as loop, asyncio.timeout(ENDED_S):
        os.write(orders, b"run 1-0\n")
        output = ""
        while not output.endswith("\n") or "started" not in output:
            output += (await asyncio.to_thread(os.read, events, 4096)).decode()
        command = os.pidfd_open(int(output.split()[-1]))
        assert loop.stdin is not None
        loop.stdin.close()
        assert await loop.wait() == 0
    assert select.select([command], [], [], ENDED_S)[0]
    os.close(command)
    os.close(events)
    os.close(orders)


async def test_commands_end_with_their_restarted_container(tmp_path: Path) -> None:
    make_folder(tmp_path)
    started: asyncio.Queue[Event] = asyncio.Queue()
    ended: asyncio.Queue[Event] = asyncio.Queue()
    shell = RankShell(tmp_path, on_started=noted_in(started), on_ended=noted_in(ended))
    async with asyncio.timeout(ENDED_S):
        async with loop_in(tmp_path) as first:
            await shell.open(starts_loop=False)
            shell.run("1-0", ("true",), {}, tmp_path)
            assert await ended.get() == ("1-0", 0)
            shell.run("1-1", ("sleep", "1000"), {}, tmp_path)
            _, pid = [await started.get() for _ in range(2)][-1]
            first.kill()
            await first.wait()
        assert ended.empty()
        async with loop_in(tmp_path) as second:
            assert await ended.get() == ("1-1", -signal.SIGKILL)
            assert shell.restarts == 1
            await shell.close()
            assert await second.wait() == 0
    # The command did not end with its container. Kill the command itself, because its process group
    # may not exist yet.
    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def container() -> tuple[str, ...]:
    """Return the program that makes a command process 1 of a pid namespace, as in a container."""
    rights = () if os.geteuid() == 0 else ("--map-root-user",)
    program = ("unshare", "--pid", "--fork", "--kill-child", *rights)
    done = subprocess.run([*program, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        assert not os.environ.get("CI"), f"CI must be able to make a namespace: {done.stderr}"
        pytest.skip(f"cannot create namespaces: {done.stderr.strip()}")
    return program


@pytest.mark.parametrize(
    "begin_next", [RankShell.reset, partial(RankShell.close, leaves_loop=True)]
)
async def test_next_step_or_trial_has_no_old_daemons(
    tmp_path: Path,
    container: tuple[str, ...],
    begin_next: Callable[[RankShell], Coroutine[Any, Any, None]],
) -> None:
    make_folder(tmp_path)
    ended: asyncio.Queue[Event] = asyncio.Queue()
    shell = RankShell(tmp_path, on_started=lambda *_: None, on_ended=noted_in(ended))
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    daemon = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    async with asyncio.timeout(ENDED_S), loop_in(tmp_path, within=container):
        await shell.open(starts_loop=False)
        script = f"setsid sh -c 'echo up; exec sleep 1000' >{alive} & true"
        shell.run("1-0", ("sh", "-c", script), {}, tmp_path)
        assert await ended.get() == ("1-0", 0)
        for expected in (b"up\n", b""):
            assert (await asyncio.to_thread(select.select, [daemon], [], [], ENDED_S))[0]
            assert os.read(daemon, 100) == expected
            await begin_next(shell)
        await shell.close(leaves_loop=True)
    os.close(daemon)


async def test_late_loop_is_reported_with_remedies(tmp_path: Path) -> None:
    make_folder(tmp_path)
    shell = RankShell(tmp_path, on_started=lambda *_: None, on_ended=lambda *_: None)
    with pytest.raises(EnvironmentProblem, match=r"0 s: .*ready_timeout\), or has no"):
        await shell.open(starts_loop=False, longest_s=0.0)
    await shell.close()


async def test_reset_ends_all_commands(tmp_path: Path) -> None:
    make_folder(tmp_path)
    started: asyncio.Queue[Event] = asyncio.Queue()
    ended: asyncio.Queue[Event] = asyncio.Queue()
    shell = RankShell(tmp_path, on_started=noted_in(started), on_ended=noted_in(ended))
    async with asyncio.timeout(ENDED_S), loop_in(tmp_path, "child"):
        await shell.open(starts_loop=False)
        shell.run("1-0", ("sleep", "1000"), {}, tmp_path)
        await started.get()
        await shell.reset()
        assert await ended.get() == ("1-0", -signal.SIGKILL)
        assert shell.unfinished == ()
        shell.run("2-0", ("true",), {}, tmp_path)
        assert await ended.get() == ("2-0", 0)
        await shell.close()


async def test_prepared_command_waits_and_discarded_one_never_runs(tmp_path: Path) -> None:
    make_folder(tmp_path)
    started: asyncio.Queue[Event] = asyncio.Queue()
    ended: asyncio.Queue[Event] = asyncio.Queue()
    shell = RankShell(tmp_path, on_started=noted_in(started), on_ended=noted_in(ended))
    ran = tmp_path / "ran"
    async with asyncio.timeout(ENDED_S):
        await shell.open(starts_loop=True)
        for command in ("1-0", "1-1"):
            shell.prepare(command, ("sh", "-c", f"echo {command} >>{ran}; exit 7"), {}, tmp_path)
        shell.discard("1-0")
        assert await ended.get() == ("1-0", 0)
        # The other command has been waiting for as long.
        assert started.empty()
        assert not ran.exists()
        shell.start("1-1")
        command, _ = await started.get()
        assert command == "1-1"
        assert await ended.get() == ("1-1", 7)
        shell.start("1-1")  # It has already ended.
        await shell.close()
    assert ran.read_text() == "1-1\n"
    assert started.empty()


BUSYBOX = 'kill() { command kill "$@" && [ "$1 $3" != "-s --" ]; }\n'
"""BusyBox's `kill -s SIGNAL -- PID` signals the process but fails because of the `--`."""


@pytest.mark.parametrize("shell_has", ["", BUSYBOX])
async def test_number_of_an_ended_group_is_forgotten(tmp_path: Path, shell_has: str) -> None:
    make_folder(tmp_path)
    (tmp_path / LOOP.name).write_text(shell_has + LOOP.read_text())
    started: asyncio.Queue[Event] = asyncio.Queue()
    ended: asyncio.Queue[Event] = asyncio.Queue()
    shell = RankShell(tmp_path, on_started=noted_in(started), on_ended=noted_in(ended))
    async with asyncio.timeout(ENDED_S):
        await shell.open(starts_loop=True)
        shell.run("1-0", ("sh", "-c", "exit 3"), {}, tmp_path)
        assert await ended.get() == ("1-0", 3)
        assert (shell.output("1-0") / "pid").read_text() == "\n"
        shell.run("1-1", ("sh", "-c", "sleep 1000 & echo $!"), {}, tmp_path)
        assert await ended.get() == ("1-1", 0)
        left = os.pidfd_open(int((shell.output("1-1") / "stdout").read_text()))
        shell.signal("1-0", "KILL")
        shell.signal("1-1", "KILL")
        assert (await asyncio.to_thread(select.select, [left], [], [], ENDED_S))[0]
        os.close(left)
        await shell.close()
