"""A session with parts of a fake placement: order, output, and independence."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aiperf_svc.adapters.storage.bucket_runs import BucketRun
from aiperf_svc.adapters.terminal.live_display import MEMBER_ROWS, LiveTable
from aiperf_svc.adapters.trackers import sending, webhook
from aiperf_svc.adapters.trackers.webhook import Delivery
from aiperf_svc.config.artifacts import S3, Artifacts, Webhook
from aiperf_svc.core.cluster.stack_stages import Stage
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.parts import Member, PartContext, Placement, Work, expand
from aiperf_svc.runner.session import Session
from aiperf_svc.runner.session_results import SessionResults
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import Where
from aiperf_svc.workloads.trials import trial_configs
from tests.support.fake_folders import write_run
from tests.support.fake_results import inference_result
from tests.support.small_configs import small_config

RESULTS = inference_result()
NAMES = ("eu", "us", "asia")


class FakePlacement(Placement):
    """Parts whose results the test determines."""

    where: Where = "cluster"
    lead_s = 0.0
    run_id = "r"

    def __init__(self, limit: int = 1) -> None:
        self._limit = limit
        self.errors: dict[str, Exception] = {}
        self.begun: list[str] = []
        self.limits_s: list[float | None] = []
        """The time limit of each part."""
        self.members: list[str] = []
        """The member name of each part."""
        self.has_files = False
        """Whether each part writes the files of a run."""
        self.connects, self.may_end = asyncio.Event(), asyncio.Event()
        self.connects.set()
        self.may_end.set()
        self.is_interrupted_at = 0
        """The number of parts after whose start the user interrupts. 0 means never."""

    @property
    def limit(self) -> int:
        return self._limit

    def prepare(self) -> bool:
        return True

    async def run(self, work: Work, context: PartContext) -> RunOutcome:
        name = work.member.name or str(work.part.round)
        self.begun.append(name)
        self.limits_s.append(context.left_s)
        self.members.append(work.run.member)
        if len(self.begun) == self.is_interrupted_at:
            signal.raise_signal(signal.SIGINT)
        await self.connects.wait()
        if name in self.errors:
            raise self.errors[name]
        context.is_counting.set()
        interrupts = context.interrupts
        context.screen.begin(Stage.UP)
        context.screen.say("made\nand up")
        await (interrupts.reached(1) if self.is_interrupted_at else self.may_end.wait())
        if self.has_files:
            write_run(work.folder, name, 20)
        return RunOutcome(
            run_id="r", state="done", reason="", results=RESULTS,
            artifacts=work.folder if self.has_files else None,
            was_interrupted=interrupts.count > 0,
        )  # fmt: skip

    async def upload_keys(self, member: Member) -> Mapping[str, str]:
        return {}


class Fake:
    """A session of three members or rounds, two at a time."""

    def __init__(
        self, folder: Path, *, rounds: int = 0, names: Sequence[str] = (), **artifacts: Any
    ) -> None:
        experiment = {"product": {"workers.max": list(range(1, rounds + 1))}, "parallel": 2}
        config = small_config(
            "http://10.0.0.1:8000",
            artifacts={"dir": str(folder), **artifacts},
            experiment=experiment if rounds else None,
        )
        trials = trial_configs(config)
        names = names or (("",) if rounds else NAMES)
        self.expansion = expand(
            [Member(name=name, config=config, trials=trials) for name in names], "cluster"
        )
        self.placement = FakePlacement(limit=2 if rounds else 1)

    async def run(self, *, timeout_s: float | None = None) -> list[RunOutcome]:
        options = RunOptions(ui="plain")
        session = Session(self.expansion, self.placement, options, timeout_s=timeout_s)
        session._results = SessionResults(self.expansion, self.placement, options)
        await session._run()
        members = session._results.members
        return [outcome for each in members.values() for outcome in each.ended.values()]


def test_one_page_cannot_show_several_runs(tmp_path: Path) -> None:
    fake, options = Fake(tmp_path), RunOptions(metrics_address=("127.0.0.1", 9464))
    with pytest.raises(ConfigError, match="the page shows one run, and several run"):
        Session(fake.expansion, fake.placement, options).run()


def test_clusters_cannot_repeat_trials_of_a_qualification() -> None:
    config = parse_benchmark(
        {
            "workload": {
                "kind": "qualify",
                "stages": [{"nodes": "alone", "workload": {"kind": "fio"}}],
            },
            "deployment": {"ranks": {"pairs": "rounds", "count": 2}},
            "experiment": {"retries": 1},
        },
        "",
    )
    trials = trial_configs(config)
    members = [Member(name=name, config=config, trials=trials) for name in NAMES]
    assert not expand(members[:1], "cluster").is_driven
    with pytest.raises(ConfigError, match=r"experiment\.retries: each cluster chooses"):
        expand(members, "cluster")


@pytest.mark.parametrize(
    ("where", "parallel", "is_split"),
    [("cluster", 1, False), ("cluster", 2, True), ("local", 1, True)],
)
def test_shapes_in_turn_share_one_stack(where: Where, *, parallel: int, is_split: bool) -> None:
    experiment = {"product": {"workers.max": [1, 2, 3]}, "parallel": parallel}
    config = small_config("http://10.0.0.1:8000", experiment=experiment)
    expansion = expand([Member(config=config, trials=trial_configs(config))], where)
    assert list(expansion.rounds) == [1, 2, 3]
    assert (expansion.is_split, expansion.is_single) == (is_split, not is_split)


async def test_failed_part_does_not_affect_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(tmp_path)
    fake.placement.errors = {"us": EnvironmentProblem("no such cluster"), "asia": ValueError("x")}
    outcomes = await fake.run()
    codes = [each.exit_code for each in outcomes]
    assert codes == [ExitCode.OK, ExitCode.ERROR, ExitCode.ERROR]
    assert outcomes[1].reason == "no such cluster"
    output = capsys.readouterr().err
    assert "us    error: no such cluster" in output
    assert "asia  error: unexpected ValueError: x" in output


async def test_every_line_begins_with_its_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await Fake(tmp_path).run()
    output = capsys.readouterr().err.splitlines()
    assert [line for line in output if line.startswith("us ")] == [
        "us    made",
        "us    and up",
        "us    ended: done, verdict valid",
    ]
    assert {line.split()[0] for line in output} == set(NAMES)


async def test_lines_of_parallel_rounds_name_member_and_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await Fake(tmp_path, rounds=2, names=("eu", "us")).run()
    output = capsys.readouterr().err.splitlines()
    found = [line.partition("ended: ")[0].strip() for line in output if "ended: " in line]
    assert sorted(found) == ["eu shape 1", "eu shape 2", "us shape 1", "us shape 2"]


async def test_interrupt_reaches_every_part_and_no_other_begins(tmp_path: Path) -> None:
    fake = Fake(tmp_path, rounds=3)
    fake.placement.is_interrupted_at = 2
    outcomes = {each.reason: each for each in await fake.run()}
    assert fake.placement.begun == ["1", "2"]
    assert {each.exit_code for each in outcomes.values()} == {ExitCode.INTERRUPTED}
    assert set(outcomes) == {"", "stopped by the user before it began"}


async def test_interrupt_ends_a_part_waiting_for_cluster(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.placement.connects.clear()
    fake.placement.is_interrupted_at = 3
    outcomes = await fake.run()
    assert [each.reason for each in outcomes] == ["nothing was created"] * 3
    assert [each.exit_code for each in outcomes] == [ExitCode.INTERRUPTED] * 3


async def test_no_part_begins_after_the_time_limit(tmp_path: Path) -> None:
    fake = Fake(tmp_path, rounds=3)
    outcomes = await fake.run(timeout_s=0.0)
    assert fake.placement.begun == []
    assert {each.reason for each in outcomes} == {"not started: --timeout had expired"}


async def test_parts_share_the_remaining_time(tmp_path: Path) -> None:
    fake = Fake(tmp_path, rounds=3)
    await fake.run(timeout_s=100.0)
    first, *others = fake.placement.limits_s
    assert first is not None
    assert first == pytest.approx(100.0)
    assert all(each is not None and each < first for each in others)


async def test_error_of_only_part_ends_the_session(tmp_path: Path) -> None:
    fake = Fake(tmp_path, rounds=1)
    fake.placement.errors = {"1": EnvironmentProblem("the stack cannot come up")}
    with pytest.raises(EnvironmentProblem, match="cannot come up"):
        await fake.run()


@pytest.mark.parametrize("is_new", [True, False])
def test_failed_start_leaves_no_new_folder(tmp_path: Path, is_new: bool) -> None:
    folder = tmp_path / "artifacts"
    if not is_new:
        folder.mkdir()
    fake = Fake(tmp_path, rounds=1, dir=str(folder))
    fake.placement.errors = {"1": EnvironmentProblem("the stack cannot come up")}
    with pytest.raises(EnvironmentProblem, match="cannot come up"):
        Session(fake.expansion, fake.placement, RunOptions(ui="plain")).run()
    assert list(tmp_path.rglob("*")) == ([] if is_new else [folder])


def test_every_member_is_sent_to_the_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def send(folder: Path, artifacts: Artifacts) -> list[str]:
        sent.append(folder.name)
        return []

    monkeypatch.setattr(sending, "send", send)
    fake = Fake(tmp_path, mlflow={"tracking_uri": "http://127.0.0.1:9"})
    fake.placement.has_files = True
    Session(fake.expansion, fake.placement, RunOptions(ui="plain")).run()
    assert sent == list(NAMES)


async def test_services_know_their_member(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    await fake.run()
    assert fake.placement.members == list(NAMES)


def test_webhook_compares_no_member_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[Delivery] = []

    def deliver(content: Delivery, to: Webhook) -> str:
        posted.append(content)
        return "host"

    def list_runs(s3: S3) -> list[BucketRun]:
        names = ("eu", "us", "asia/elsewhere")
        urls = [f"s3://bucket/runs/{name}/{RESULTS.name}-20261101T030000Z-0" for name in names]
        return [BucketRun(url, (), is_whole=True) for url in urls if url.startswith(s3.url)]

    def copy_runs(_: S3, runs: Sequence[BucketRun], __: Path) -> dict[Path, str]:
        return {Path(run.url): run.url for run in runs}

    monkeypatch.setattr(webhook, "deliver", deliver)
    monkeypatch.setattr(webhook, "list_runs", list_runs)
    monkeypatch.setattr(webhook, "copy_runs", copy_runs)
    compared = webhook.Compared("not judged", (), ())
    monkeypatch.setattr(webhook, "compare_folders", lambda *_: compared)
    bucket = {"url": "s3://bucket/runs", "endpoint_url": "http://127.0.0.1:9"}
    fake = Fake(tmp_path, webhook={"url": "http://127.0.0.1:9/hook"}, s3=bucket)
    fake.placement.has_files = True
    Session(fake.expansion, fake.placement, RunOptions(ui="plain")).run()
    night = f"{RESULTS.name}-20261101T030000Z-0"
    assert [each.base for each in posted] == [
        f"s3://bucket/runs/eu/{night}",
        f"s3://bucket/runs/us/{night}",
        None,
    ]
    reason = f"s3://bucket/runs/asia has no earlier run of {RESULTS.name}"
    assert posted[-1].not_compared == reason


def test_table_counts_hidden_parts() -> None:
    names = [f"stack-{number}" for number in range(MEMBER_ROWS + 4)]
    console = Console(file=StringIO(), force_terminal=True, width=100)
    with LiveTable(names, console) as table:
        table.set("stack-0", "finished", "done")
        table.set("stack-1", "up", "31 made")
        file = console.file
        assert isinstance(file, StringIO)
        shown = file.getvalue()
    assert "31 made" in shown
    assert f"{MEMBER_ROWS + 2} waiting, 1 finished" in shown
