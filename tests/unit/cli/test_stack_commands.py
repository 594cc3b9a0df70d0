"""The commands about stacks up to where a cluster begins."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.cli import main as cli
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.stack import ephemeral, run
from aiperf_svc.runner.stack.options import StackOptions
from aiperf_svc.runner.stack.request import StackRequest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No state, no backend, no cluster of this machine's user."""
    monkeypatch.chdir(REPOSITORY)
    for name in ("PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN", "AIPERF_IMAGE", "AIPERF_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_STATE_HOME", "PULUMI_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "x")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[StackRequest, StackOptions]]:
    """What the runner was asked for."""
    requests: list[tuple[StackRequest, StackOptions]] = []

    def run_stack(request: StackRequest, options: StackOptions, **more: Any) -> ExitCode:
        requests.append((request, options))
        return ExitCode.SLO_MISSED

    monkeypatch.setattr(run, "run_stack", run_stack)
    monkeypatch.setattr(ephemeral, "run_ephemeral", run_stack)
    return requests


def test_preview_compares_with_another_version_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(Path("stacks/Pulumi.bench-smoke.yaml").read_text())
    content["config"]["aiperf:benchmark"]["load"]["concurrency"] = 4
    old = tmp_path / "old.yaml"
    old.write_text(yaml.safe_dump(content))
    assert cli.main(["preview", "bench-smoke", "--markdown", "--against", str(old)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("### Benchmark stack `bench-smoke`")
    assert "- load.concurrency: 4\n+ load.concurrency: 8\n" in text


def test_preview_needs_neither_cluster_nor_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "bench-100k"]) == 0
    out = capsys.readouterr().out
    assert "256 pods" in out
    assert "Not compared with what is deployed: the Pulumi CLI is not on PATH" in out


def test_run_asks_the_runner_for_the_stack_and_its_exit_code_is_the_runners(
    asked: list[tuple[StackRequest, StackOptions]],
) -> None:
    flags = ("--yes", "--keep-on-failure", "--timeout", "20m", "--context", "c", "--json")
    code = cli.main(["run", "bench-smoke", *flags, "--generation", "2"])
    ((request, options),) = asked
    assert code == ExitCode.SLO_MISSED
    assert (request.stack, request.context, request.generation) == ("bench-smoke", "c", 2)
    assert (options.yes, options.keep, options.keep_on_failure) == (True, False, True)
    assert (options.timeout_s, options.run.json) == (1200.0, True)


def test_profile_on_a_cluster_is_a_stack_of_a_name_that_nobody_has(
    asked: list[tuple[StackRequest, StackOptions]],
) -> None:
    flags = ("-u", "10.0.0.1:8000", "-m", "m", "--concurrency", "1", "--name", "test-" * 7 + "s")
    for _ in range(2):
        cli.main(["profile", "--kubernetes", *flags, "--api-key", "the key"])
    first, second = (request for request, _ in asked)
    assert first.stack != second.stack
    assert first.stack.startswith("test-test-test-")
    assert first.plan.identity.stack == first.stack
    assert first.is_ephemeral
    assert first.secrets == {"targetApiKey": "the key"}
    assert "the key" not in str(first.file_content())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "bench-smoke", "--generation", "x"), "--generation: 'x': expected a whole number"),
        (("profile", "-k", "-u", "10.0.0.1:1", "-m", "m", "--concurrency", "1",
          "--input-file", "prompts.jsonl"), "a file of this machine, which pods cannot read"),
        (("profile", "-k", "-u", "10.0.0.1:1", "-m", "m", "--concurrency", "1",
          "--kubernetes-namespace", "Not_One"), "--kubernetes-namespace: 'Not_One'"),
        (("run", "images/requirements.lock.yaml"), "no such file"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_do_is_refused(
    arguments: tuple[str, ...],
    message: str,
    asked: list[tuple[StackRequest, StackOptions]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(arguments) == ExitCode.BAD_CONFIG
    assert message in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("command", ["status", "results", "cancel"])
def test_without_the_cli_no_stack_is_looked_at(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "bench-smoke"]) == ExitCode.ERROR
    assert "the Pulumi CLI is not on PATH; install it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "results", "cancel", "gc"])
def test_a_name_that_no_stack_can_have_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "../bench-smoke"]) == ExitCode.BAD_CONFIG
    assert "the stack's name is '../bench-smoke'" in capsys.readouterr().err


def test_gc_without_a_cluster_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gc", "--yes"]) == ExitCode.ERROR
    assert "no kubeconfig at" in capsys.readouterr().err
