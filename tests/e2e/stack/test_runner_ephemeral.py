"""`profile --kubernetes`: a stack without a file, in a new or an existing namespace."""

import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack import owners
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import UP, Runner

pytestmark = pytest.mark.cluster


def profile(runner: Runner, *arguments: str) -> tuple[str, ...]:
    """Write the stack's benchmark as a plain config and return a command that uses it."""
    benchmark = yaml.safe_load(runner.file.read_text())["config"]["aiperf:benchmark"]
    benchmark["name"] = runner.name
    config = runner.folder / "benchmark.yaml"
    config.write_text(yaml.safe_dump(benchmark))
    more = ("--yes", "--ui", "plain", "--json")
    return ("profile", "--kubernetes", "--config", config.name, *more, *arguments)


def ephemeral(runner: Runner) -> list[Path]:
    """Return the projects that are kept for gc."""
    return sorted((runner.state_home / "ephemeral").glob("*"))


def test_missing_namespace_is_created_and_removed(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner, namespace = make_runner(), f"made-{secrets.token_hex(3)}"
    ended = runner.call(*profile(runner, "--kubernetes-namespace", namespace))
    printed = json.loads(ended.out)
    assert (ended.code in FINISHED, printed["namespace"], printed["left"]) == (True, namespace, [])
    assert "is created, and removed at the end" in ended.errors
    assert cluster.left_of(printed["stack"]) == []
    names = {found["metadata"]["name"] for found in cluster.objects("namespaces")}
    assert namespace not in names
    assert ephemeral(runner) == []


def test_existing_namespace_is_used_and_kept(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    runner = make_runner()
    cluster.kubectl("create", "configmap", "owners", "-n", owners_namespace, "--from-literal=a=b")
    before = cluster.of_namespace(owners_namespace)
    owned = owners.state(cluster, owners_namespace)
    ended = runner.call(*profile(runner, "--kubernetes-namespace", owners_namespace))
    printed = json.loads(ended.out)
    assert (ended.code in FINISHED, printed["left"]) == (True, [])
    assert f"namespace {owners_namespace} exists and is kept" in ended.errors
    assert cluster.left_of(printed["stack"]) == []
    assert cluster.of_namespace(owners_namespace) == before
    assert owners.state(cluster, owners_namespace) == owned


def test_leftovers_of_a_killed_runner_are_removed(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    with runner.start(*profile(runner)) as command:
        command.wait_for(UP)
        command.kill()
    (project,) = ephemeral(runner)
    assert (project / "passphrase").stat().st_mode & 0o077 == 0
    ended = runner.gc()
    assert (ended.code, cluster.left_of(project.name)) == (ExitCode.OK, [])
    assert ephemeral(runner) == []
