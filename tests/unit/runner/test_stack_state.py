"""Records and state that outlive a runner, and who may use them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

import aiperf_svc
from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.host.child_processes import is_alive
from aiperf_svc.adapters.pulumi import deployed, project
from aiperf_svc.adapters.pulumi.cli import Lock, locks_in
from aiperf_svc.adapters.pulumi.progress import Progress
from aiperf_svc.adapters.pulumi.project import check_locks, is_pulumi, take_over
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.config.load_config import load_config
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.plan.identity import RUN_ID
from aiperf_svc.runner.stack import bring_up, preview
from aiperf_svc.runner.stack.request import StackRequest, find_context, open_project, secrets_from

STACKS = Path(__file__).parents[3] / "stacks"
RECORD = RunRecord(
    stack="s", cluster="uid", kubeconfig=None, context="c", backend="", is_ephemeral=False
)
REFUSED = """error: the stack is currently locked by 1 lock(s). Either wait
  file:///s/.pulumi/locks/organization/aiperf/s/1.json: created by me@here (pid 41) at 2026-11-21T08
"""


@pytest.fixture
def home(tmp_path: Path) -> StateHome:
    return StateHome({"XDG_STATE_HOME": str(tmp_path)})


# --- records -------------------------------------------------------------------------------------


def test_record_exists_until_forgotten(home: StateHome) -> None:
    home.save(RECORD)
    assert (home.load("s"), home.records()) == (RECORD, (RECORD,))
    home.forget("s")
    assert (home.load("s"), home.records()) == (None, ())


def test_stack_lock_admits_one_runner(home: StateHome) -> None:
    with home.hold("s"):
        with pytest.raises(EnvironmentProblem, match=r"process \d+ is working on it"):
            home.hold("s").__enter__()
        with home.hold("other"):
            pass
    with home.hold("s"):
        pass


async def test_only_killed_runners_processes_are_awaited(home: StateHome, tmp_path: Path) -> None:
    notes: list[str] = []
    with home.hold("s") as held:
        # No process waits for a living runner.
        await home.wait_for_killed("s", notes.append, is_alive=lambda pid: True)
        assert notes == []
        inherited = os.dup(held)
    (tmp_path / "aiperf-svc" / "runs" / "s.lock").write_text("41")

    def end(pid: int) -> bool:
        if notes:
            os.close(inherited)
        return False

    try:
        await home.wait_for_killed("s", notes.append, is_alive=end)
    finally:
        with contextlib.suppress(OSError):
            os.close(inherited)
    assert notes == ["stack s: waiting for the Pulumi process of a killed run (41)"]
    with home.hold("s"):
        pass


def test_ephemeral_stack_has_a_private_passphrase(home: StateHome) -> None:
    folder = home.ephemeral("s")
    backend = project.ephemeral_backend(folder)
    secret = folder / project.PASSPHRASE_FILE
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_text()) > 20
    assert secret.read_text() not in str(backend)
    assert project.ephemeral_backend(folder) == backend
    environ = project.cli_environment(backend, {}, {"PULUMI_CONFIG_PASSPHRASE": "user's"})
    assert "PULUMI_CONFIG_PASSPHRASE" not in environ


# --- backends ------------------------------------------------------------------------------------


def test_default_backend_is_local_with_notice(home: StateHome, tmp_path: Path) -> None:
    environ = {"PULUMI_HOME": str(tmp_path), "PULUMI_CONFIG_PASSPHRASE": "x"}
    backend = project.choose_backend(home, environ)
    assert backend.url == f"{home.backend.as_uri()}?metadata=skip"
    assert str(home.backend) in backend.notice


def test_login_backend_is_left_to_cli(home: StateHome, tmp_path: Path) -> None:
    content = json.dumps({"current": "s3://bucket"})
    (tmp_path / "credentials.json").write_text(content)
    environ = {"PULUMI_HOME": str(tmp_path), "PULUMI_CONFIG_PASSPHRASE": "x"}
    backend = project.choose_backend(home, environ)
    assert (backend.url, backend.environ, backend.notice) == ("s3://bucket", {}, "")


def test_login_uses_home_of_passwd_entry(
    home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".pulumi").mkdir()
    (tmp_path / ".pulumi/credentials.json").write_text(json.dumps({"current": "s3://bucket"}))
    monkeypatch.setenv("HOME", "/somewhere/else")
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    backend = project.choose_backend(home, {"PULUMI_CONFIG_PASSPHRASE": "x"})
    assert (backend.url, backend.notice) == ("s3://bucket", "")


@pytest.mark.parametrize("url", ["file:///state", "s3://bucket"])
def test_missing_state_passphrase_is_refused(home: StateHome, url: str) -> None:
    with pytest.raises(ConfigError, match="export PULUMI_CONFIG_PASSPHRASE="):
        project.choose_backend(home, {"PULUMI_BACKEND_URL": url})


def test_folder_backend_has_an_absolute_path(
    home: StateHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"PULUMI_BACKEND_URL": "file://./state", "PULUMI_CONFIG_PASSPHRASE": "x"}
    backend = project.choose_backend(home, environ)
    url = f"file://{tmp_path}/state?metadata=skip"
    assert (backend.url, backend.environ) == (url, {"PULUMI_BACKEND_URL": url})


def test_opening_a_project_repairs_killed_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks = tmp_path / "state" / ".pulumi" / "stacks" / "aiperf"
    stacks.mkdir(parents=True)
    (stacks / "s.json.attrs").touch()
    environ = {"PULUMI_BACKEND_URL": (tmp_path / "state").as_uri(), "PULUMI_CONFIG_PASSPHRASE": "x"}
    with open_project("s", None, environ):
        assert not list(stacks.iterdir())
    assert "note: state of stack s: removed " in capsys.readouterr().err


def cluster_of(context: str) -> Cluster:
    return cast("Cluster", SimpleNamespace(identity="uid", context=context))


@pytest.mark.parametrize("context", ["", "there"])
def test_context_of_the_runner_is_the_programs(tmp_path: Path, context: str) -> None:
    environ = {"PULUMI_BACKEND_URL": tmp_path.as_uri(), "PULUMI_CONFIG_PASSPHRASE": "x"}
    cluster = cluster_of(context) if context else None
    with open_project("s", None, environ, cluster=cluster) as cli:
        assert cli._environ.get("AIPERF_CONTEXT", "") == context


def test_pulumi_gets_the_kubeconfig_with_the_context(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("none", "empty", "here", "there")]
    files[1].touch()
    for file in files[2:]:
        file.write_text(json.dumps({"contexts": [{"name": file.name, "context": {}}]}))
    environ = {
        "PULUMI_BACKEND_URL": tmp_path.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE": "x",
        "KUBECONFIG": os.pathsep.join(map(str, files)),
    }
    for context, wanted in (("there", files[3]), ("other", files[1])):
        with open_project("s", None, environ, cluster=cluster_of(context)) as cli:
            assert cli._environ["KUBECONFIG"] == str(wanted)


def test_service_backend_needs_no_passphrase(home: StateHome) -> None:
    backend = project.choose_backend(home, {"PULUMI_BACKEND_URL": "https://api.pulumi.com"})
    assert backend.notice == ""


# --- locks ---------------------------------------------------------------------------------------


def test_a_refused_command_names_the_locks() -> None:
    assert locks_in(REFUSED) == (Lock(user="me", host="here", pid=41, at="2026-11-21T08"),)
    assert locks_in("error: something else") == ()


@pytest.mark.parametrize(
    ("host", "is_alive", "force", "is_refused"),
    [
        ("here", True, False, True),
        ("here", True, True, True),
        ("here", False, False, False),
        ("elsewhere", True, False, True),
        ("elsewhere", True, True, False),
    ],
)
def test_only_a_dead_process_loses_its_lock(
    host: str, is_alive: bool, force: bool, is_refused: bool
) -> None:
    lock = Lock(user="me", host=host, pid=41, at="")

    def check() -> None:
        check_locks([lock], stack="s", force=force, host="here", is_alive=lambda pid: is_alive)

    if is_refused:
        with pytest.raises(EnvironmentProblem, match="pid 41"):
            check()
    else:
        check()


async def test_locks_of_dead_local_processes_are_taken_over() -> None:
    notes: list[str] = []

    async def taken(*locks: tuple[str, int]) -> bool:
        found = [Lock(user="me", host=host, pid=pid, at="") for host, pid in locks]
        dead = (41, 42)
        return await take_over(
            found, stack="s", say=notes.append, host="here", is_alive=lambda pid: pid not in dead
        )

    assert await taken(("here", 41), ("here", 42))
    assert notes[0].startswith("stack s: removing the lock of a process that has ended (me@here, p")
    for others in ((), (("here", 43),), (("elsewhere", 41),), (("here", 41), ("elsewhere", 42))):
        assert not await taken(*others)
    assert len(notes) == 2


@pytest.mark.parametrize("has_ended", [True, False])
async def test_lock_of_an_ended_pod_is_taken_over(has_ended: bool) -> None:
    async def ended(lock: Lock) -> bool:
        return has_ended

    lock = Lock(user="pod.ops.uid", host="night-1", pid=9, at="")
    notes: list[str] = []
    taken = await take_over([lock], stack="s", say=notes.append, has_ended=ended, host="night-2")
    assert taken is has_ended
    assert len(notes) == has_ended


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux about processes")
def test_zombie_process_is_dead() -> None:
    with subprocess.Popen(("sleep", "300")) as process:
        assert is_alive(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
    assert not is_alive(process.pid)
    assert not is_pulumi(os.getpid())


# --- reading the state ---------------------------------------------------------------------------


def pods_of(run_id: str) -> dict[str, Any]:
    """Return a Deployment of services with the fields that identify their run."""
    container = {"name": "worker", "env": [{"name": RUN_ID, "value": run_id}]}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


STATE = {
    "deployment": {
        "resources": [
            {"type": "pulumi:providers:kubernetes", "inputs": {"clusterIdentifier": "uid"}},
            {
                "type": "kubernetes:core/v1:Namespace",
                "outputs": {"metadata": {"name": "n", "uid": "u"}},
            },
            {
                "type": "kubernetes:core/v1:ConfigMap",
                "inputs": {"data": {"config.yaml": "load: {concurrency: 8}\n"}},
            },
            {"type": "kubernetes:apps/v1:Deployment", "inputs": pods_of("r1")},
        ]
    }
}


def test_state_has_namespace_and_benchmark() -> None:
    assert deployed.namespace_of(STATE) == ("n", "u")
    assert deployed.benchmark_of(STATE) == {"load": {"concurrency": 8}}
    assert deployed.benchmark_of({"deployment": {}}) is None
    assert deployed.runs_of(STATE) == {"r1"}


def state_of(request: StackRequest) -> dict[str, Any]:
    """Return the state that `up` leaves."""
    pods = pods_of(request.plan.identity.run_id)
    return {
        "deployment": {
            "resources": [
                {"type": "kubernetes:core/v1:ConfigMap", "inputs": {"data": request.plan.files}},
                {"type": "kubernetes:apps/v1:Deployment", "inputs": pods},
            ]
        }
    }


def test_image_or_generation_makes_a_new_run() -> None:
    known = request_of("bench-smoke")
    state = state_of(known)
    same = bring_up.compare(known, state)
    assert (same.changed, same.is_new_run, same.is_deployed) == ((), False, True)
    found = bring_up.compare(request_of("bench-smoke", generation=2), state)
    assert (found.changed, found.is_new_run) == ((), True)
    other = replace(known, environ={"AIPERF_IMAGE": "registry/aiperf:2"})
    found = bring_up.compare(other, state)
    assert found.is_new_run
    assert found.changed is not None
    assert [each for each in found.changed if "registry/aiperf:2" in str(each)]


def test_interrupted_up_continues_as_new_run() -> None:
    known = request_of("bench-smoke")
    state = state_of(known)
    pod = {"type": "kubernetes:apps/v1:Deployment", "inputs": pods_of("older")}
    state["deployment"]["resources"].append(pod)
    assert bring_up.compare(known, state).is_new_run


def test_absent_stack_has_nothing_to_compare() -> None:
    states: list[dict[str, Any]] = [{}, {"deployment": {}}]
    for state in states:
        found = bring_up.compare(request_of("bench-smoke"), state)
        assert (found.changed, found.not_compared, found.is_deployed) == (None, "", False)


def test_unreadable_state_is_not_a_new_stack() -> None:
    request = replace(request_of("bench-smoke"), environ={"PULUMI_BACKEND_URL": "file:///state"})
    found = preview.compare(request)
    assert found.changed is None
    assert "export PULUMI_CONFIG_PASSPHRASE=" in found.not_compared


def test_changed_generation_in_file_is_new_run(tmp_path: Path) -> None:
    content = yaml.safe_load((STACKS / "Pulumi.bench-smoke.yaml").read_text())
    content["config"]["aiperf:generation"] = 2
    old = tmp_path / "Pulumi.bench-smoke.yaml"
    old.write_text(yaml.safe_dump(content))
    found = preview.compare(request_of("bench-smoke"), old)
    assert (found.changed, found.is_new_run, found.is_deployed) == ((), True, False)


def test_state_is_never_used_on_another_cluster() -> None:
    deployed.check_cluster(STATE, stack="s", identity="uid")
    with pytest.raises(EnvironmentProblem, match=r"in another cluster .* stack rm --force"):
        deployed.check_cluster(STATE, stack="s", identity="another")
    empty = {"deployment": {"resources": STATE["deployment"]["resources"][:1]}}
    deployed.check_cluster(empty, stack="s", identity="another")


# --- requests ------------------------------------------------------------------------------------


def request_of(name: str, environ: Mapping[str, str] | None = None, **more: object) -> StackRequest:
    path = STACKS / f"Pulumi.{name}.yaml"
    settings = project.read_settings(path)
    return StackRequest(
        stack=name, config=load_config(path), settings=settings, environ=environ or {}, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_project_file_adds_flags_to_committed_file(tmp_path: Path) -> None:
    request = request_of("bench-smoke", kubeconfig="k", context="c", generation=3)
    project.make_project(tmp_path, stack="bench-smoke", settings=request.file_content())
    notes = yaml.safe_load((tmp_path / "stacks" / "Pulumi.bench-smoke.yaml").read_text())["config"]
    committed = yaml.safe_load((STACKS / "Pulumi.bench-smoke.yaml").read_text())["config"]
    assert notes.pop("aiperf:kubeconfig") == str(Path("k").absolute())
    assert notes.pop("aiperf:context") == "c"
    assert notes == committed
    assert (tmp_path / "infra" / "__main__.py").is_file()


def test_place_of_stack_follows_flags_record_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"AIPERF_CONTEXT": "variable", "XDG_STATE_HOME": str(tmp_path)}
    record = RunRecord(
        stack="s", cluster="u", kubeconfig="/run", context="run", backend="", is_ephemeral=False
    )

    def place(
        *, kubeconfig: str | None = None, context: str | None = None
    ) -> tuple[str | None, str | None]:
        return find_context("s", environ, kubeconfig=kubeconfig, context=context)

    assert place() == (None, "variable")
    (tmp_path / "stacks").mkdir()
    file = tmp_path / "stacks" / "Pulumi.s.yaml"
    file.write_text("config: {aiperf:kubeconfig: file.yaml, aiperf:context: file}")
    in_file = str(tmp_path / "file.yaml")
    assert place() == (in_file, "file")
    StateHome(environ).save(record)
    assert place() == ("/run", "run")
    assert place(context="flag") == ("/run", "flag")
    # Another kubeconfig has other contexts.
    assert place(kubeconfig="/flag") == ("/flag", "file")
    StateHome(environ).forget("s")
    file.write_text("config:\n  aiperf:context: [")
    with pytest.raises(ConfigError, match=r"Pulumi\.s\.yaml"):
        place()


@pytest.mark.parametrize("name", ["bench-spot", "bench-variants"])
def test_missing_passphrase_is_refused_before_start(name: str) -> None:
    with pytest.raises(ConfigError, match="export PULUMI_CONFIG_PASSPHRASE="):
        request_of(name, secrets={"targetApiKey": "k"}).check_secrets()


def test_missing_secret_names_both_remedies() -> None:
    environ = {"PULUMI_CONFIG_PASSPHRASE": "x"}
    request = request_of("bench-spot", environ=environ)
    with pytest.raises(ConfigError, match=r"pulumi config set --secret .* or give --api-key"):
        request.check_secrets()
    request_of("bench-spot", environ=environ, secrets={"targetApiKey": "k"}).check_secrets()
    assert request.config.inference is not None
    variable = request.config.inference.endpoint.api_key_env or ""
    assert secrets_from(request.config, {variable: "k"}) == {"targetApiKey": "k"}


# --- progress ------------------------------------------------------------------------------------


def event(kind: str, name: str, op: str = "create") -> dict[str, object]:
    type_ = "kubernetes:apps/v1:Deployment"
    return {kind: {"metadata": {"op": op, "type": type_, "urn": f"urn::{type_}::{name}"}}}


def test_progress_counts_done_and_names_pending() -> None:
    notes: list[str] = []
    now = iter(range(0, 100, 2))
    progress = Progress("up", notes.append, clock=lambda: next(now))
    steps = [("resourcePreEvent", "a"), ("resourcePreEvent", "b"), ("resOutputsEvent", "a")]
    for kind, name in steps:
        progress.handle(event(kind, name))
    progress.handle(event("resourcePreEvent", "x", "same"))
    assert progress.line() == "up: 1 created; waiting for Deployment b"
    assert notes


def test_progress_keeps_each_error_once() -> None:
    progress = Progress("up", lambda text: None)
    for _ in range(2):
        progress.handle({"diagnosticEvent": {"severity": "error", "message": "it\n broke"}})
    assert progress.errors == ["it\n broke"]


# --- the program ---------------------------------------------------------------------------------


def test_program_is_found_in_an_installed_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    included = tomllib.loads((STACKS.parent / "pyproject.toml").read_text())["tool"]["hatch"]
    for source, place in included["build"]["targets"]["wheel"]["force-include"].items():
        example, there = STACKS.parent / source, tmp_path / place
        if example.is_dir():
            shutil.copytree(example, there)
        else:
            there.write_bytes(example.read_bytes())
    monkeypatch.setattr(aiperf_svc, "__file__", str(tmp_path / "aiperf_svc" / "__init__.py"))
    program = project.find_program()
    assert program.infra == tmp_path / "aiperf_svc" / "_infra"
    project.make_project(tmp_path / "p", stack="s", settings={})
    assert yaml.safe_load((tmp_path / "p" / "Pulumi.yaml").read_text())["main"] == "infra/"


def test_broken_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiperf_svc, "__file__", str(tmp_path / "aiperf_svc" / "__init__.py"))
    with pytest.raises(EnvironmentProblem, match="install aiperf-svc again"):
        project.find_program()
