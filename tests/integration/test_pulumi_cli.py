"""How the Pulumi CLI is run, seen with a program that stands for it."""

import asyncio
import functools
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.pulumi_cli import PulumiCli, PulumiFailed, _die_with_parent
from aiperf_svc.domain.errors import EnvironmentProblem

FAKE = """#!{python}
import json, os, signal, sys, time
said = open("said", "a")
def say(text):
    said.write(text + "\\n"); said.flush()
say(" ".join(sys.argv[1:3]) + f" sid={{os.getsid(0) == os.getpid()}}")
if "select" in sys.argv and "--create" not in sys.argv:
    print("error: no stack named 's' found", file=sys.stderr); sys.exit(1)
if "set" in sys.argv:
    say("stdin " + sys.stdin.read())
    say(f"argv {{sys.argv}}")
if "rm" in sys.argv:
    print("error: it is not empty", file=sys.stderr); sys.exit(1)
if "up" in sys.argv:
    ended = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, frame: ended.append(signal.Signals(n).name))
    with open(sys.argv[sys.argv.index("--event-log") + 1], "a") as events:
        events.write(json.dumps({{"sequence": 0}}) + "\\n"); events.flush()
        while not ended:
            signal.pause()
        say("got " + ended[0])
        events.write(json.dumps({{"sequence": 1}}) + "\\n")
    sys.exit(255)
"""


@pytest.fixture
def cli(tmp_path: Path) -> PulumiCli:
    return cli_in(tmp_path)


def cli_in(folder: Path) -> PulumiCli:
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "pulumi"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    (folder / "logs").mkdir(exist_ok=True)
    environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return PulumiCli(folder=folder, stack="s", environ=environ, logs=folder / "logs")


async def test_an_interrupted_command_is_told_once_and_awaited(
    cli: PulumiCli, tmp_path: Path
) -> None:
    stop, events = asyncio.Event(), []

    def on_event(event: dict[str, Any]) -> None:
        events.append(event["sequence"])
        stop.set()

    ended = await cli.up(on_event, stop=stop)
    assert (ended.code, events) == (255, [0, 1])
    assert (tmp_path / "said").read_text() == "up -y sid=True\ngot SIGINT\n"


async def test_a_stack_that_is_not_known_is_no_error(cli: PulumiCli) -> None:
    assert not await cli.select(create=False)
    assert await cli.select(create=True)


async def test_a_secret_is_no_argument_and_no_file(cli: PulumiCli, tmp_path: Path) -> None:
    await cli.set_secret("targetApiKey", "the key")
    said = (tmp_path / "said").read_text()
    assert "stdin the key" in said
    assert "the key" not in said.partition("argv")[2]
    assert not any("the key" in path.read_text() for path in (tmp_path / "logs").iterdir())


async def test_a_failed_command_says_what_the_cli_said(cli: PulumiCli) -> None:
    with pytest.raises(PulumiFailed, match="`pulumi stack rm` failed:\n  error: it is not empty"):
        await cli.forget()


async def test_without_the_cli_the_remedy_is_said(tmp_path: Path) -> None:
    cli = PulumiCli(folder=tmp_path, stack="s", environ={"PATH": ""}, logs=tmp_path)
    with pytest.raises(EnvironmentProblem, match="install it"):
        await cli.export()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux")
def test_a_child_whose_parent_died_before_it_could_ask_ends_by_itself() -> None:
    started = functools.partial(_die_with_parent, os.getpid() + 1)
    # Not by `sleep`'s own end, which would be 0.
    with subprocess.Popen(("sleep", "30"), preexec_fn=started) as child:
        assert child.wait() == -signal.SIGTERM
    with subprocess.Popen(
        ("true",), preexec_fn=functools.partial(_die_with_parent, os.getpid())
    ) as child:
        assert child.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's death on Linux")
def test_a_killed_runners_cli_is_told_to_end(tmp_path: Path) -> None:
    cli_in(tmp_path)
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from test_pulumi_cli import cli_in\n"
        "cli = cli_in(Path(sys.argv[1]))\n"
        "asyncio.run(cli.up(lambda e: print('up', flush=True), stop=asyncio.Event()))\n"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code, str(tmp_path)),
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "up\n"
        (child,) = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        descriptor = os.pidfd_open(int(child))
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    try:
        assert select.select([descriptor], [], [], 30.0)[0]
    finally:
        os.close(descriptor)
    assert "got SIGTERM" in (tmp_path / "said").read_text()
