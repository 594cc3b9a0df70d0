"""Experiments on the command line, up to the point where something would start."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.cli import main as cli
from aiperf_svc.config.load_config import parse_as
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.workloads import trials

SEARCH = {"parameter": "load.concurrency", "from": 1, "to": 8, "maximize": "goodput"}
PROFILE = ("profile", "--url", "http://h:1", "--model", "m", "--dry-run")


def stack(folder: Path, experiment: dict[str, Any], **benchmark: Any) -> str:
    """Write a stack file with an experiment and return its path."""
    path = folder / "Pulumi.many.yaml"
    content: dict[str, Any] = {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"duration": "10s", "grace_period": "5s", "concurrency": 1},
        "deployment": {"target": {"kind": "mock"}, "prices": {"cpu": 1.0, "currency": "EUR"}},
        "experiment": experiment,
    }
    content |= benchmark
    path.write_text(yaml.safe_dump({"config": {"aiperf:benchmark": content}}, sort_keys=False))
    return str(path)


def local(folder: Path, **benchmark: Any) -> list[str]:
    """Return the arguments of a local dry run with this benchmark."""
    path = folder / "t.yaml"
    content = {"endpoint": {"url": "http://h:1", "model": "m"}} | benchmark
    path.write_text(yaml.safe_dump(content))
    return ["profile", "--config", str(path), "--dry-run"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the Pulumi CLI, whose state would be read."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_dry_run_lists_the_trials(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*PROFILE, "--concurrency", "1,2", "--duration", "5s"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["trial", "load.concurrency", "takes"]
    assert len(out.splitlines()) == 4


def test_a_dry_run_names_the_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = [{"name": name, "endpoint": {"url": f"http://{name}:1"}} for name in ("a", "b")]
    command = local(tmp_path, load={"concurrency": 1, "duration": "5s"}, targets=targets)
    assert cli.main(command) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "2 targets at the same time, each with its own processes:"
    assert [line.partition(",")[0] for line in lines] == ["  a: http://a:1", "  b: http://b:1"]
    assert cli.main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["targets"]
    assert [each["url"] for each in shown] == ["http://a:1", "http://b:1"]


def test_dry_run_counts_the_trials_of_each_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = {
        "load": {"duration": "5s"},
        "experiment": {"product": {"load.concurrency": [1, 2]}},
        "targets": [{"name": n, "endpoint": {"url": f"http://{n}:1"}} for n in ("a", "b")],
    }
    assert cli.main(local(tmp_path, **content)) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[1] for line in lines] == [" 2 trials", " 2 trials"]
    content["experiment"] = {"product": {"workers.max": [1, 2]}}
    content["load"] = {"concurrency": 2, "duration": "5s"}
    assert cli.main(local(tmp_path, **content)) == 0
    assert "shape 2 of 2 (workers.max=2): trials 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ({"product": {"load.concurrency": [1, 2]}, "repetitions": 2}, ""),
        ({"scenario": "single-stream"}, ""),
        ({"search": SEARCH}, ""),
        ({"search": {**SEARCH, "parameter": "workers.max"}}, ""),
        ({"repetitions": 2, "retries": 1}, ""),
        ({"product": {"workers.max": [1, 2]}, "parallel": 2}, ""),
        ({"repetitions": 2, "fan_out": "jobs"}, "with experiment.fan_out: jobs, trials begin"),
        (
            {"repetitions": 2, "retries": 1, "parallel": 2},
            "with experiment.retries, all runs repeat a trial together",
        ),
    ],
)
@pytest.mark.parametrize("several", ["clusters", "targets"])
def test_trials_that_cannot_start_together_are_refused(
    several: str,
    experiment: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = [{"name": n, "endpoint": {"model": n}} for n in ("a", "b")]
    more = {"targets": targets} if several == "targets" else {}
    path = Path(stack(tmp_path, experiment, **more))
    if several == "clusters":
        content = yaml.safe_load(path.read_text())
        content["config"]["aiperf:clusters"] = [{"context": "eu"}, {"context": "us"}]
        path.write_text(yaml.safe_dump(content))
    code = cli.main(["validate", str(path)])
    assert code == (ExitCode.BAD_CONFIG if message else ExitCode.OK)
    shown = capsys.readouterr().err
    assert message in shown


def test_refused_trial_is_named_with_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = local(
        tmp_path,
        endpoint={"url": "http://h:1", "model": "m", "streaming": True},
        load={"concurrency": 2, "duration": "5s"},
        experiment={"product": {"load.prefill_concurrency": [1, 2]}},
        targets=[
            {"name": "a", "endpoint": {"url": "http://a:1"}},
            {"name": "b", "endpoint": {"streaming": False}},
        ],
    )
    assert cli.main(command) == ExitCode.BAD_CONFIG
    assert "target b" in capsys.readouterr().err


def test_dry_run_names_trials_that_need_other_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*PROFILE, "--concurrency", "1,2", "--sweep", "workers.max=1,2"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  shape 1 of 2 (workers.max=1): trials 1, 3",
        "  shape 2 of 2 (workers.max=2): trials 2, 4",
    ]


def test_dry_run_of_search_states_maximum_trials(capsys: pytest.CaptureFixture[str]) -> None:
    slo = ("--slo", "time_to_first_token:p95<400ms", "--streaming")
    search = ("--search", "load.request_rate=4..300", "--duration", "4")
    assert cli.main([*PROFILE, *search, *slo]) == 0
    out = capsys.readouterr().out
    assert out.startswith("search: load.request_rate from 4 to 300 for what holds (slo); at most ")


def test_a_dry_run_as_json_has_all_trials(capsys: pytest.CaptureFixture[str]) -> None:
    lists = ("--isl", ",".join(map(str, range(1, 61))), "--concurrency", "1,2", "--json")
    assert cli.main([*PROFILE, *lists]) == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 120


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--concurrency", "1,2,0"),
            "trial load.concurrency=0: --concurrency: 0: expected a number above 0",
        ),
        (
            ("--concurrency", "1", "--sweep", "slo.goodput=[{request_latency: 1s}, {nothing: 1}]"),
            "nothing",
        ),
        (
            ("--concurrency", "1", "--sweep", "endpoint.api_key_env=null_1,MISSING_KEY"),
            "'null_1' is not set",
        ),
        (
            ("--concurrency", "1", "--sweep", "dataset.kind=synthetic,single_turn"),
            "trial dataset.kind=single_turn: --custom-dataset-type single_turn needs --input-file",
        ),
        (("--concurrency", "1,2", "--kubernetes"), "--dry-run: only for a run on this machine"),
        (("--concurrency", "1", "--kubernetes", "-v"), "note: --verbose: no effect on a stack"),
    ],
)
def test_refused_trial_ends_the_command_before_any_starts(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*PROFILE, *flags]) == ExitCode.BAD_CONFIG
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_validate_checks_every_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"product": {"load.concurrency": [1, 2]}}
    assert cli.main(["validate", stack(tmp_path, good)]) == 0
    objectives = [[{"metric": m, "max": 1}] for m in ("request_latency", "request_latenci")]
    bad = {"product": {"slo.objectives": objectives}}
    assert cli.main(["validate", stack(tmp_path, bad)]) == ExitCode.BAD_CONFIG
    assert "request_latenci" in capsys.readouterr().err


def test_preview_lists_the_trials_after_the_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stack(tmp_path, {"product": {"load.concurrency": [1, 2]}})
    assert cli.main(["preview", path]) == 0
    out = capsys.readouterr().out
    assert "of the first trial: 1 concurrent, for 10s" in out
    assert out.rstrip().endswith("2      2                 10s")
    assert cli.main(["preview", path, "--markdown"]) == 0
    assert "#### Trials\n\n```\n2 trials, about 20s" in capsys.readouterr().out


def test_preview_as_json_has_cost_and_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stack(tmp_path, {"product": {"load.concurrency": [1, 2]}, "cooldown": "1s"})
    assert cli.main(["preview", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ((pods),) = found["pods"]
    assert pods["trials"] == [1, 2]
    assert pods["load_s"] == found["longest_s"] == 31
    assert pods["totals"]["cost_per_hour"] > 0


def test_preview_shows_each_set_of_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stack(
        tmp_path, {"product": {"load.concurrency": [1, 2], "deployment.target.replicas": [1, 3]}}
    )
    assert cli.main(["preview", path]) == 0
    out = capsys.readouterr().out
    assert "shape 1 of 2 (deployment.target.replicas=1): trials 1, 3" in out
    assert "shape 2 of 2 (deployment.target.replicas=3): trials 2, 4" in out
    assert "\n  2      2       11 " in out
    assert "2 shapes, one after another; load about " in out
    assert "deployment.target.replicas: (default) → 3" in out
    assert "`pulumi up` brings up shape 1 and runs its trials; `pulumi config set " in out
    assert cli.main(["preview", path, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["pods"]
    assert second["totals"]["pods"] == first["totals"]["pods"] + 2


@pytest.mark.parametrize("against", [False, True])
def test_preview_shows_shapes_that_run_in_parallel(
    *, against: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stack(
        tmp_path,
        {
            "product": {"load.concurrency": [1, 2], "deployment.target.replicas": [1, 2, 3]},
            "parallel": 2,
            "priority": [{"deployment.target.replicas": 3}],
        },
    )
    other = ["--against", path] if against else []
    assert cli.main(["preview", path, "--markdown", *other]) == 0
    out = capsys.readouterr().out
    assert "shape 1 of 3 (deployment.target.replicas=3): trials 3, 6" in out
    assert "3 shapes, 2 at a time; load about " in out
    assert "many-1 to many-3" in out
    assert "6 trials, in total about " in out
    assert cli.main(["preview", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parallel"] == 2
    assert [each["trials"] for each in found["pods"]] == [[3, 6], [1, 4], [2, 5]]


def test_local_run_refuses_parallel_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = {"product": {"workers.max": [1, 2]}, "parallel": 2}
    assert cli.main(["run", stack(tmp_path, lists), "--local", "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert "experiment.parallel: 2: measurements at the same time on one machine would " in message


def test_local_run_refuses_trials_of_several_mock_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = {"product": {"deployment.target.args": [["--ttft", "1ms"], ["--ttft", "2ms"]]}}
    assert cli.main(["run", stack(tmp_path, lists), "--local", "--dry-run"]) == 2
    assert "--local: the config needs several servers" in capsys.readouterr().err


@pytest.mark.parametrize("is_stack", [False, True], ids=["dry run", "preview"])
def test_a_config_of_each_trial_is_made_once(
    *, is_stack: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = []

    def parse(model: Any, data: Any, source: str, **others: Any) -> Any:
        made.append(source)
        return parse_as(model, data, source, **others)

    monkeypatch.setattr(trials, "parse_as", parse)
    lists = {"product": {"load.concurrency": [1, 2, 3, 4]}, "repetitions": 2}
    command = ["preview", stack(tmp_path, lists)]
    if not is_stack:
        command = ["run", command[1], "--local", "--dry-run"]
    assert cli.main(command) == 0
    assert made == [f"trial load.concurrency={number}" for number in (1, 2, 3, 4)]
