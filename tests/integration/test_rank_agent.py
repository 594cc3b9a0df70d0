"""`rank_agent.sh` replaces ssh. It passes a command to the courier and returns the command's output
and exit code."""

import asyncio
from pathlib import Path

import pytest

from aiperf_svc.adapters.ranks.launches import Launch, LaunchRequests


@pytest.mark.parametrize(("exit_code", "seen"), [(0, 0), (3, 3), (-15, 143)])
async def test_command_for_another_rank_runs_at_its_courier(
    tmp_path: Path, exit_code: int, seen: int
) -> None:
    launched: asyncio.Queue[Launch] = asyncio.Queue()
    launches = LaunchRequests(tmp_path, launched.put_nowait)
    words = ("-q", "-x", "10.0.0.7", "orted", "--daemonize", "a b")
    agent = await asyncio.create_subprocess_exec(
        launches.agent, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    launch = await asyncio.wait_for(launched.get(), 30)
    assert launch == Launch(str(agent.pid), "10.0.0.7", "orted --daemonize a b")
    launches.reply(launch.number, exit_code, b"one\n  two\n", b"warned\n")
    assert await asyncio.wait_for(agent.communicate(), 30) == (b"one\n  two\n", b"warned\n")
    assert agent.returncode == seen
    launches.close()
    assert list((tmp_path / "launches").iterdir()) == []


async def test_request_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    launched: asyncio.Queue[Launch] = asyncio.Queue()
    launches = LaunchRequests(tmp_path, launched.put_nowait)
    (tmp_path / "key").write_text("secret")
    (tmp_path / "launches/1.command").symlink_to(tmp_path / "key")
    (tmp_path / "launches/2.command").write_text("true\n")
    with pytest.raises(OSError, match=r"1\.command"):
        launches._take(["1 10.0.0.7"])
    launches._take(["2 10.0.0.7"])
    assert [launched.get_nowait(), launched.empty()] == [Launch("2", "10.0.0.7", "true"), True]
    launches.close()


async def test_reply_replaces_links_of_a_command(tmp_path: Path) -> None:
    launches = LaunchRequests(tmp_path, lambda _: None)
    (tmp_path / "key").write_text("secret")
    (tmp_path / "outside.reply").touch()
    (tmp_path / "launches/1.command").write_text("true\n")
    for kind in ("stdout", "stderr"):
        (tmp_path / f"launches/1.{kind}").symlink_to(tmp_path / "key")
    launches._take(["../outside 10.0.0.7", "1 10.0.0.7"])
    launches.reply("1", 0, b"out", b"err")
    assert (tmp_path / "launches/1.stdout").read_bytes() == b"out"
    assert (tmp_path / "key").read_text() == "secret"
    assert (tmp_path / "outside.reply").is_file()
    launches.close()
