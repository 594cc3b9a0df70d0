"""Stack commands up to the first access to a cluster."""

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml

from aiperf_svc.adapters.cluster.preflight import cluster_checks
from aiperf_svc.adapters.cluster.preflight.cluster_checks import ClusterReport
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport
from aiperf_svc.adapters.pulumi import rendering
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.storage import resuming
from aiperf_svc.cli import main as cli
from aiperf_svc.cli.commands import clusters, running_stacks
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.runner.options import StackOptions
from aiperf_svc.runner.stack import placement
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.previews.object_list import HIDDEN
from tests.support.releases import deployment
from tests.support.small_configs import small_benchmark

REPOSITORY = Path(__file__).parents[3]
BY_TLS = "profile -k -u https://10.0.0.1:1 -m m --concurrency 1"
IN_PODS = BY_TLS.replace("https://", "")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the user's state, backend and cluster."""
    monkeypatch.chdir(REPOSITORY)
    for name in ("PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN", "AIPERF_IMAGE", "AIPERF_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_STATE_HOME", "PULUMI_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "x")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def runner_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[StackRequest, StackOptions]]:
    """Record the arguments of the runner."""
    requests: list[tuple[StackRequest, StackOptions]] = []

    def run_stack(request: StackRequest, options: StackOptions, *more: Any) -> ExitCode:
        requests.append((request, options))
        return ExitCode.SLO_MISSED

    monkeypatch.setattr(placement, "run_stacks", run_stack)
    monkeypatch.setattr(placement, "run_in_namespace", run_stack)
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


def test_own_stack_finds_its_manifests_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["preview", "bench-disaggregated"]) == 0
    assert "Deployment/router" in capsys.readouterr().out
    assert cli.main(["validate", "bench-disaggregated"]) == 0


def test_validate_finds_the_installed_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins: list[str] = []

    def invoke(plugin: str, *_: Any) -> list[Json]:
        plugins.append(plugin)
        return [deployment("decode")]

    monkeypatch.setattr(rendering, "_invoke", invoke)
    installed = tmp_path / "plugins" / "resource-kubernetes-v4.18.1" / rendering.PLUGIN
    installed.parent.mkdir(parents=True)
    installed.touch()
    content = yaml.safe_load(Path("stacks/Pulumi.bench-disaggregated.yaml").read_text())
    target = content["config"]["aiperf:benchmark"]["deployment"]["target"]
    target["from"] = {"chart": str(tmp_path / "plugins")}
    file = tmp_path / "Pulumi.bench.yaml"
    file.write_text(yaml.safe_dump(content))
    assert cli.main(["validate", str(file)]) == 0
    assert plugins == [str(installed)]


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the Pulumi program render one object with the CPU requests and a key of the stack."""

    async def manifests(self: StackRequest, number: int) -> tuple[Json, ...]:
        metadata = {"name": f"keys-{self.stack}", "run": self.plan.identity.run_id}
        made = {"kind": "Secret", "metadata": metadata, "data": {"key": "c2VjcmV0"}}
        return ({**made, "cpu": self.plan.totals.cpu_millis},)

    monkeypatch.setattr(StackRequest, "manifests", manifests)


@pytest.mark.usefixtures("rendered")
def test_preview_shows_changes_of_the_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(Path("stacks/Pulumi.bench-smoke.yaml").read_text())
    pods = content["config"]["aiperf:benchmark"]["deployment"].setdefault("pods", {})
    pods["worker"] = {"cpu": 9}
    old = tmp_path / "old.yaml"
    old.write_text(yaml.safe_dump(content))
    command = ["preview", "bench-smoke", "--markdown", "--objects"]
    assert cli.main([*command, "--against", str(old)]) == 0
    _, _, text = capsys.readouterr().out.partition("#### Objects against")
    changed = [line[:5] for line in text.splitlines() if line[:1] in ("-", "+")]
    assert changed[2:] == ["-cpu:", "+cpu:"]
    assert cli.main(command) == 0
    assert "data: {key: (hidden)}" in capsys.readouterr().out


@pytest.mark.usefixtures("rendered")
def test_manifests_are_only_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "bench-smoke", "--manifests"]) == 0
    (secret,) = yaml.safe_load_all(capsys.readouterr().out)
    assert secret["data"] == {"key": HIDDEN}


@pytest.mark.parametrize("form", ["--json", "--manifests"])
@pytest.mark.parametrize("more", [["--markdown"], ["--against", "old.yaml"]])
def test_preview_drops_no_comparison_in_silence(
    form: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["preview", "bench-smoke", form, *more]) == ExitCode.BAD_CONFIG
    assert f"error: {form}: prints no comparison" in capsys.readouterr().err


def test_scheduled_runner_uses_the_images_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIPERF_IMAGE", "r.io/services:7")
    content = yaml.safe_load(Path("stacks/Pulumi.bench-smoke.yaml").read_text())
    content["config"]["aiperf:benchmark"]["artifacts"] = {"s3": {"url": "s3://bench/nightly"}}
    file = tmp_path / "Pulumi.bench-night.yaml"
    file.write_text(yaml.safe_dump(content))
    assert cli.main(["schedule", str(file), "--cron", "@daily", "--state", "s3://bench/state"]) == 0
    objects = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    job = objects["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = job["containers"]
    assert container["image"] == "r.io/services-runner:7"
    assert {"name": "AIPERF_IMAGE", "value": "r.io/services:7"} in container["env"]


def test_schedule_of_several_targets_runs_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(Path("stacks/Pulumi.bench-fleet.yaml").read_text())
    content["config"]["aiperf:benchmark"]["artifacts"] = {"s3": {"url": "s3://bench/nightly"}}
    file = tmp_path / "Pulumi.bench-night.yaml"
    file.write_text(yaml.safe_dump(content))
    flags = ("--cron", "@daily", "--state", "s3://bench/state", "--image", "r.io/runner:1")
    assert cli.main(["schedule", str(file), *flags]) == 0
    objects = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert objects["CronJob"]["metadata"]["name"] == "schedule-bench-night"
    assert list(objects["ConfigMap"]["data"]) == [file.name]


@pytest.mark.parametrize("is_varied", [False, True])
def test_schedule_refuses_manifests_of_this_machine(
    is_varied: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(Path("stacks/Pulumi.bench-disaggregated.yaml").read_text())
    benchmark = content["config"]["aiperf:benchmark"]
    benchmark["artifacts"] = {"s3": {"url": "s3://bench/nightly"}}
    if is_varied:
        mounted = {"manifests": str(REPOSITORY / "stacks" / "disaggregated")}
        own = benchmark["deployment"]["target"].pop("from")
        benchmark["experiment"] = {"product": {"deployment.target.from": [mounted, own]}}
    file = tmp_path / "Pulumi.bench-night.yaml"
    file.write_text(yaml.safe_dump(content))
    flags = ("--cron", "@daily", "--state", "s3://bench/state", "--image", "r.io/runner:1")
    assert cli.main(["schedule", str(file), *flags]) == ExitCode.BAD_CONFIG
    assert "from: 'stacks/disaggregated' is a path of this machine" in capsys.readouterr().err


def test_preview_names_the_stack_of_each_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "bench-fleet", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "#### Stacks\n\n```\nthe same for each of 3 targets" in out
    assert "    bench-fleet-large (http://target-bench-fleet-large:8000); 5 pods" in out
    assert "      endpoint.model: small → large" in out


def test_preview_needs_neither_cluster_nor_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "bench-100k"]) == 0
    out = capsys.readouterr().out
    assert "256 pods" in out
    assert "Not compared with what is deployed: the Pulumi CLI is not on PATH" in out


def test_preview_refuses_to_replace_a_pinned_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(Path("stacks/Pulumi.bench-smoke.yaml").read_text())
    pinned = "registry.example/aiperf-svc:1@sha256:" + "0a" * 32
    content["config"]["aiperf:benchmark"]["deployment"]["image"] = {"name": pinned}
    file = tmp_path / "Pulumi.pinned.yaml"
    file.write_text(yaml.safe_dump(content))
    assert cli.main(["preview", str(file)]) == 0
    assert pinned in capsys.readouterr().out
    monkeypatch.setenv("AIPERF_IMAGE", "registry.example/aiperf-svc:2")
    assert cli.main(["preview", str(file)]) == ExitCode.BAD_CONFIG
    assert f"pins another image by its digest: {pinned}" in capsys.readouterr().err


def test_run_returns_the_exit_code_of_the_runner(
    runner_calls: list[tuple[StackRequest, StackOptions]],
) -> None:
    flags = ("--yes", "--keep-on-failure", "--timeout", "20m", "--context", "c", "--json")
    code = cli.main(["run", "bench-smoke", *flags, "--generation", "2"])
    ((request, options),) = runner_calls
    assert code == ExitCode.SLO_MISSED
    assert (request.stack, request.context, request.generation) == ("bench-smoke", "c", 2)
    assert (options.yes, options.keep, options.keep_on_failure) == (True, False, True)
    assert (options.timeout_s, options.run.json) == (1200.0, True)


def test_profile_on_cluster_makes_unique_stack_name(
    runner_calls: list[tuple[StackRequest, StackOptions]],
) -> None:
    flags = ("-u", "10.0.0.1:8000", "-m", "m", "--concurrency", "1", "--name", "test-" * 7 + "s")
    for _ in range(2):
        cli.main(["profile", "--kubernetes", *flags, "--api-key", "the key"])
    first, second = (request for request, _ in runner_calls)
    assert first.stack != second.stack
    assert first.stack.startswith("test-test-test-")
    assert first.plan.identity.stack == first.stack
    assert first.is_ephemeral
    assert first.secrets == {"targetApiKey": "the key"}
    assert "the key" not in str(first.file_content())


def test_profile_resumes_the_stack_of_an_unfinished_folder(
    tmp_path: Path, runner_calls: list[tuple[StackRequest, StackOptions]]
) -> None:
    flags = ("-u", "10.0.0.1:8000", "-m", "m", "--concurrency", "1,2", "--request-count", "9")
    cli.main(["profile", "--kubernetes", *flags])
    ((first, _),) = runner_calls
    folder = tmp_path / "waits"
    folder.mkdir()
    resuming.begin(folder, first.config)
    cli.main(["profile", "--kubernetes", *flags, "--resume", str(folder)])
    record = RunRecord(stack=first.stack, cluster="c", kubeconfig=None, context=None, backend="",
                       is_ephemeral=True, artifacts=str(folder))  # fmt: skip
    StateHome().save(record)
    cli.main(["profile", "--kubernetes", *flags, "--resume", str(folder)])
    gone, up = (request for request, _ in runner_calls[1:])
    assert gone.stack != first.stack == up.stack
    assert [options.run.resume for _, options in runner_calls[1:]] == [folder, folder]
    assert up.plan == first.plan


def test_parallel_shape_stacks_are_found_by_their_folder(
    tmp_path: Path, runner_calls: list[tuple[StackRequest, StackOptions]]
) -> None:
    flags = ("-u", "10.0.0.1:8000", "-m", "m", "--concurrency", "1,2", "--request-count", "9")
    cli.main(["profile", "--kubernetes", *flags])
    resuming.begin(tmp_path, runner_calls[0][0].config)
    record = RunRecord(stack="name-x1-12", cluster="c", kubeconfig=None, context=None, backend="",
                       is_ephemeral=True, artifacts=str(tmp_path / "shapes" / "12"))  # fmt: skip
    StateHome().save(record)
    cli.main(["profile", "--kubernetes", *flags, "--resume", str(tmp_path)])
    assert runner_calls[1][0].stack == "name-x1"


def test_ca_file_is_passed_to_pods_as_text(
    tmp_path: Path, runner_calls: list[tuple[StackRequest, StackOptions]]
) -> None:
    text = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    path = tmp_path / "ca.pem"
    path.write_text(text)
    flags = ("-u", "https://10.0.0.1:8000", "-m", "m", "--concurrency", "1")
    cli.main(["profile", "--kubernetes", *flags, "--tls-ca-file", str(path)])
    ((request, _),) = runner_calls
    assert request.plan.config.inference is not None
    tls = request.plan.config.inference.endpoint.tls
    assert (tls.ca, tls.ca_file) == (text.strip(), None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run bench-smoke --generation x", "--generation: 'x': expected a whole number"),
        (f"{IN_PODS} --input-file prompts.jsonl", "a file of this machine, which pods cannot read"),
        (f"{IN_PODS} --image-folder pictures", "a file of this machine, which pods cannot read"),
        (f"{IN_PODS} --tokenizer ./t.json", "a file of this machine, which pods cannot read"),
        (
            f"{IN_PODS} --nvml all",
            "--nvml: all: the GPUs of the services' own machine, not those of the target's nodes",
        ),
        (f"{IN_PODS} --kubernetes-namespace Not_One", "--kubernetes-namespace: 'Not_One'"),
        (f"{IN_PODS} --wandb-project p", "artifacts.wandb: "),
        (f"{BY_TLS} --tls-ca-file /nix.pem", "--tls-ca-file: cannot read '/nix.pem'"),
        (f"{BY_TLS} --tls-ca-file Makefile", "--tls-ca-file: 'Makefile' holds no certificates"),
        ("run images/requirements.lock.yaml", "no such file"),
    ],
)
def test_settings_unsupported_on_a_cluster_are_refused(
    words: str,
    message: str,
    runner_calls: list[tuple[StackRequest, StackOptions]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(shlex.split(words)) == ExitCode.BAD_CONFIG
    assert message in capsys.readouterr().err
    assert runner_calls == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"deployment": {"ttl": "30s"}}, "deployment.ttl is 30s; the pods may take"),
        ({"endpoint": {"url": "http://127.0.0.1:1", "model": "m"}}, "this is the pod itself"),
        ({"endpoint": {"url": "http://target", "model": "m"}, "deployment": {}},
         "host `target` stands for a target in the stack, and there is none"),
    ],
)  # fmt: skip
def test_validate_refuses_the_same_stacks_as_run(
    changed: dict[str, Any],
    message: str,
    tmp_path: Path,
    runner_calls: list[tuple[StackRequest, StackOptions]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = yaml.safe_load(Path("stacks/Pulumi.bench-smoke.yaml").read_text())
    benchmark = content["config"]["aiperf:benchmark"]
    benchmark.update(changed)
    file = tmp_path / "Pulumi.changed.yaml"
    file.write_text(yaml.safe_dump(content))
    assert cli.main(["validate", str(file)]) == ExitCode.BAD_CONFIG
    message = capsys.readouterr().err
    assert message in message
    assert str(file) in message


def test_validate_needs_no_cluster_keys_of_a_config(tmp_path: Path) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text(yaml.safe_dump(small_benchmark(load={"concurrency": 1, "duration": "3h"})))
    assert cli.main(["validate", str(file)]) == ExitCode.OK


@pytest.mark.parametrize("command", ["status", "results", "cancel"])
def test_stack_commands_need_the_pulumi_cli(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "bench-smoke"]) == ExitCode.ERROR
    assert "the Pulumi CLI is not on PATH; install it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "results", "cancel", "gc"])
def test_invalid_stack_name_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "../bench-smoke"]) == ExitCode.BAD_CONFIG
    assert "the stack's name is '../bench-smoke'" in capsys.readouterr().err


def test_gc_without_a_cluster_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gc", "--yes"]) == ExitCode.ERROR
    assert "no kubeconfig at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "message", "count"),
    [
        ("profiling", "the run is stopping; results so far are kept", 1),
        ("done", "the run has already ended (done)", 0),
    ],
)
def test_only_a_running_run_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
    message: str,
    count: int,
) -> None:
    reasons: list[str] = []

    class Client:
        async def status(self) -> SimpleNamespace:
            return SimpleNamespace(state=state)

        async def cancel(self, reason: str) -> None:
            reasons.append(reason)

    @asynccontextmanager
    async def attach(*_: Any, **__: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(client=Client())

    monkeypatch.setattr(running_stacks, "attach", attach)
    assert cli.main(["cancel", "s"]) == ExitCode.OK
    assert message in capsys.readouterr().err
    assert len(reasons) == count


def test_status_of_an_inference_run_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def status() -> Status:
        return Status(
            number=1, state="done", reason="", phase="profiling", is_cancelling=False,
            elapsed_s=1.0, phase_elapsed_s=1.0, workers=1, workers_lost=0, record_processors=1,
            dataset=msgspec.Raw(b'{"entries":3}'), message="", results_ready=True,
            artifact_error="", verdict="valid",
        )  # fmt: skip

    @asynccontextmanager
    async def attach(*_: Any, **__: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(client=SimpleNamespace(status=status))

    monkeypatch.setattr(running_stacks, "attach", attach)
    assert cli.main(["status", "s", "--json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["dataset"]) == ("done", {"entries": 3})


def test_check_with_unknown_leftovers_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unread = ("namespace aiperf-check-1 (Forbidden)",)
    left = LeakReport(left=(), not_checked=unread, unverified=unread)

    async def check(*_: Any, **__: Any) -> ClusterReport:
        return ClusterReport(checks=(), gpus=(), left=left)

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(clusters, "connect", connect)
    monkeypatch.setattr(cluster_checks, "check_cluster", check)
    assert cli.main(["check-cluster"]) == ExitCode.UNVERIFIED
    assert "it is unknown whether anything is left" in capsys.readouterr().err


def test_run_without_the_cli_ends_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    assert cli.main(["run", "bench-smoke", "--yes"]) == ExitCode.ERROR
    assert "the Pulumi CLI is not on PATH; install it" in capsys.readouterr().err
