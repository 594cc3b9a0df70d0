"""A courier sends the output of its commands at the end of a step, and always a report."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from aiperf_svc.adapters.messaging.bus import Bus, decode, encode
from aiperf_svc.adapters.ranks.counters import Counters
from aiperf_svc.adapters.ranks.rank_environment import (
    RankEnvironment,
    local_environment,
    with_own_volume,
)
from aiperf_svc.adapters.ranks.rank_shell import READY_S, RankShell
from aiperf_svc.adapters.ranks.step_commands import StepCommands
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.steps import (
    CommandLaunched,
    LaunchEnded,
    RankFiles,
    StepOrder,
    StepOutput,
    StepStage,
)
from aiperf_svc.services.ranks.courier import Courier
from aiperf_svc.workloads.command import WORKLOAD
from aiperf_svc.workloads.registry import tool_of
from aiperf_svc.workloads.steps import Command, PlannedStep, Step, UnreadableOutput
from tests.support import fake_steps


class Sent:
    """A socket that records sent messages."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send_multipart(self, frames: Sequence[bytes]) -> None:
        await self.send(frames[-1])

    async def send(self, frame: bytes) -> None:
        self.messages.append(decode(frame))


class Shell:
    """Commands that have ended without output. Records the calls."""

    restarts = 0
    unfinished: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.signals: list[tuple[str, str]] = []

    def output(self, command: str) -> Path:
        return self._folder / command

    def run(self, command: str, *_: object) -> None:
        self.output(command).mkdir()

    def prepare(self, command: str, *_: object) -> None:
        pass

    def start(self, command: str) -> None:
        pass

    async def reset(self) -> None:
        self.signals.append(("all", "KILL"))

    def signal(self, command: str, name: str) -> None:
        self.signals.append((command, name))


@pytest_asyncio.fixture
async def courier(tmp_path: Path) -> AsyncIterator[Courier]:
    """Yield the courier of rank 0, whose sockets record sent messages."""
    context = fake_steps.context_of("rank-0", tmp_path)
    bus = Bus(context.addresses)
    made = Courier(context, bus)
    made._raw, made._returns = cast(Any, Sent()), cast(Any, Sent())
    made._environment = local_environment(tmp_path, "rank-0", None)
    made._shell = cast(RankShell, Shell(tmp_path))
    (made._environment.folder / "work").mkdir()
    yield made
    await bus.close(linger_ms=0)


def environment_of(courier: Courier) -> RankEnvironment:
    assert courier._environment is not None
    return courier._environment


def commands_of(courier: Courier, *keeps: str) -> StepCommands:
    """Return a step that has one command, keeps these files, and was not started."""
    command = Command(rank=0, argv=("x",), keeps=keeps)
    step = Step(name="only", commands=(command,), timeout_ns=60 * 10**9)
    assert courier._shell is not None
    return StepCommands(
        PlannedStep(number=1, attempt=1, repetition=1, step=step),
        0,
        shell=courier._shell,
        environment=environment_of(courier),
        files={},
        env={},
        output_limit=1000,
        to_reference_ns=lambda: 0,
    )


async def finished(courier: Courier, step: StepCommands) -> list[StepOutput]:
    """Return the messages that the courier sends at the end of a step."""
    plan = msgspec.json.encode(step.plan)
    await courier._finish(step, StepOrder(*courier.header, 1, StepStage.FINISH, "", plan))
    return cast(Sent, courier._raw).messages


async def test_courier_waits_for_the_image_of_its_rank(
    courier: Courier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Starting(Shell):
        def __init__(self, folder: Path, **_: object) -> None:
            super().__init__(folder)

        async def open(self, *, starts_loop: bool, longest_s: float) -> None:
            raise EnvironmentProblem(f"{starts_loop} {longest_s:g}")

    async def give_files(*_: object) -> bytes:
        return encode(RankFiles(*courier.header, files={}))

    for name in ("ADVERTISE", "NODE", "RANK_DIR", "RANK_VOLUME"):
        monkeypatch.setenv(f"AIPERF_{name}", str(tmp_path))
    monkeypatch.setattr("aiperf_svc.services.ranks.courier.ask", give_files)
    monkeypatch.setattr("aiperf_svc.services.ranks.courier.RankShell", Starting)
    ready_s = courier.context.ranks.deployment.ready_timeout / 1e9
    with pytest.raises(EnvironmentProblem, match=f"False {ready_s:g}"):
        await courier._configure()
    assert ready_s > READY_S
    ranks = courier.context.ranks
    controller_waits_ns = tool_of(ranks).longest_waits_ns(ranks, is_held=False)
    assert controller_waits_ns == ready_s * 1e9
    assert courier._launches is not None
    courier._launches.close()


async def test_kept_files_may_have_any_name(courier: Courier) -> None:
    for name in (b"a\xff.json", b"a\xfe.json"):
        path = environment_of(courier).folder / "work" / name.decode(errors="surrogateescape")
        path.write_bytes(name)
    *pieces, last = await finished(courier, commands_of(courier, "*.json"))
    assert {(piece.file, piece.data) for piece in pieces} == {
        (r"a\xff.json", b"a\xff.json"),
        (r"a\xfe.json", b"a\xfe.json"),
    }
    assert (last.piece, last.report and last.report.problem) == (2, "")


async def test_file_of_several_patterns_comes_once(courier: Courier) -> None:
    for name in ("result.json", "stdout"):
        (environment_of(courier).folder / "work" / name).write_text(name)
    *pieces, last = await finished(courier, commands_of(courier, "*.json", "result.*", "std*"))
    assert [(piece.file, piece.data) for piece in pieces] == [("result.json", b"result.json")]
    assert last.piece == 1


@pytest.mark.parametrize(
    ("is_container", "files"),
    [(True, {"inner.json", "volume.json"}), (False, {"inner.json", "volume.json", "key.json"})],
)
async def test_links_in_a_pod_stay_in_shared_folders(
    courier: Courier, tmp_path: Path, is_container: bool, files: set[str]
) -> None:
    courier._environment = environment = replace(environment_of(courier), is_container=is_container)
    targets = {
        "inner.json": environment.folder / "work" / "result",
        "volume.json": environment.volume / "result",
        "key.json": tmp_path / "key",
    }
    for name, target in targets.items():
        target.write_text("content")
        (environment.folder / "work" / name).symlink_to(target)
    *pieces, _ = await finished(courier, commands_of(courier, "*.json"))
    assert {piece.file for piece in pieces} == files


async def test_nothing_of_earlier_steps_is_left(courier: Courier) -> None:
    folder = environment_of(courier).folder
    for name in ("commands/0-0", "work/out"):
        (folder / name).mkdir(parents=True)
        (folder / name / "stdout").write_text("of the step before")
    await commands_of(courier).prepare()
    assert cast(Shell, courier._shell).signals == [("all", "KILL")]
    assert [*(folder / "commands").iterdir(), *(folder / "work").iterdir()] == []


async def test_no_step_begins_beside_an_unkillable_command(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiperf_svc.adapters.ranks.step_commands.TERM_S", 0.0)
    (environment_of(courier).folder / "commands").mkdir()
    shell, step = cast(Shell, courier._shell), commands_of(courier)
    await step.prepare()
    assert step.problem == ""
    step._start("1-0")
    await step._end(step._running)
    assert shell.signals == [("all", "KILL"), ("1-0", "TERM"), ("1-0", "KILL")]
    assert step.problem == "rank 0: SIGKILL did not end x"
    shell.unfinished = ("launch-1-7", "1-0")
    following = commands_of(courier)
    await following.prepare()
    assert following.problem == "rank 0: SIGKILL did not end a command of step 1"


async def test_step_with_unreadable_output_has_a_report(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1.json", "2.json"):
        (environment_of(courier).folder / "work" / name).write_text(name)
    really_open = Path.open

    def open_first(path: Path, mode: str) -> Any:
        if path.name == "2.json":
            raise PermissionError(13, "Permission denied", path.name)
        return really_open(path, mode)

    monkeypatch.setattr(Path, "open", open_first)
    first, last = await finished(courier, commands_of(courier, "*.json"))
    assert (first.file, first.is_last, last.piece, last.is_last) == ("1.json", False, 1, True)
    assert last.report is not None
    problem = "rank 0: PermissionError: [Errno 13] Permission denied: '2.json'"
    assert last.report.problem == problem


async def test_memory_peak_is_of_its_step(courier: Courier) -> None:
    step = commands_of(courier)
    step._before = step._after = Counters(memory_peak_bytes=5)
    assert step.witness(clock_uncertainty_ns=0).memory_peak_bytes == 0
    step._after = Counters(memory_peak_bytes=7)
    assert step.witness(clock_uncertainty_ns=0).memory_peak_bytes == 7


@pytest.mark.parametrize("error", [UnreadableOutput("no number"), KeyError("speed")])
async def test_unreadable_line_is_no_progress(
    courier: Courier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> str:
        raise error

    monkeypatch.setattr(type(WORKLOAD), "progress", refuse)
    (tmp_path / "1-0").mkdir()
    (tmp_path / "1-0" / "stdout").write_text("a line\n")
    assert courier._progress(commands_of(courier)) == ""


async def test_own_folder_of_a_host_path_is_removed(courier: Courier, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "of others").touch()
    environment = local_environment(tmp_path, "rank-0", str(disk))
    for _ in range(2):  # Ranks on one machine share it.
        courier._environment = own = with_own_volume(environment, "run")
    (own.volume / "aiperf-0.0.0").write_text("data")
    courier._shell = None
    for _ in range(2):
        await courier.close()
    assert [path.name for path in disk.iterdir()] == ["of others"]


def test_missing_host_path_is_named(tmp_path: Path) -> None:
    environment = local_environment(tmp_path, "rank-0", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentProblem, match=r"cannot create .*gone/aiperf-run: No such file"):
        with_own_volume(environment, "run")


async def test_launch_without_output_is_answered(courier: Courier) -> None:
    courier._launch(CommandLaunched(*courier.header, 1, "1-7", "true"))
    await courier._return_launch("launch-1-7", 0)
    (ended,) = cast(Sent, courier._returns).messages
    assert isinstance(ended, LaunchEnded)
    assert (ended.launch, ended.exit_code, ended.stdout) == ("1-7", 255, b"")
    assert ended.stderr == b"rank 0: launch-1-7 left no output\n"


async def test_step_ends_its_launched_commands(courier: Courier) -> None:
    courier._launch(CommandLaunched(*courier.header, 1, "1-7", "sleep 1000"))
    await finished(courier, commands_of(courier))
    assert cast(Shell, courier._shell).signals == [("launch-1-7", "TERM")]


async def test_launch_in_a_pod_reads_no_key(courier: Courier, tmp_path: Path) -> None:
    courier._environment = replace(environment_of(courier), is_container=True)
    courier._launch(CommandLaunched(*courier.header, 1, "1-7", "true"))
    (tmp_path / "key").write_text("secret")
    for name in ("stdout", "stderr"):
        (tmp_path / "launch-1-7" / name).symlink_to(tmp_path / "key")
    await courier._return_launch("launch-1-7", 0)
    (ended,) = cast(Sent, courier._returns).messages
    assert (ended.exit_code, ended.stdout) == (255, b"")
