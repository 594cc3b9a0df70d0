"""What a plain `pulumi up` leaves that was killed before it wrote the anchor into its state is
removed by `gc`, and by the next run. The state is edited to be as that kill leaves it, since the
moment is too short to be hit."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.commands import Ended, attempt
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import UP, Runner, in_checkout, plain_environ

pytestmark = pytest.mark.cluster

COMMAND_S = 120.0
ROOTS = ("**Namespace::*", "**ConfigMap::anchor")


def pulumi(runner: Runner, *words: str, stdin: str | None = None) -> Ended:
    command = ("pulumi", *words, "-s", runner.name, "--non-interactive")
    environ = plain_environ(runner)
    return attempt(command, environ=environ, folder=runner.folder, timeout_s=COMMAND_S, stdin=stdin)


def done(ended: Ended) -> str:
    assert ended.code == 0, ended.out + ended.errors
    return ended.out


def kill_while_the_anchor_is_made(runner: Runner) -> None:
    """Create the roots only, and leave the state that Pulumi has before it writes the anchor."""
    in_checkout(runner)
    (runner.state_home / "backend").mkdir(parents=True)
    done(pulumi(runner, "stack", "select", "--create"))
    targets = [part for each in ROOTS for part in ("--target", each)]
    done(pulumi(runner, "up", "-y", "--skip-preview", *targets))
    state: dict[str, Any] = json.loads(done(pulumi(runner, "stack", "export")))
    deployment = state["deployment"]
    (anchor,) = (each for each in deployment["resources"] if each["urn"].endswith("::anchor"))
    kept = [each for each in deployment["resources"] if each is not anchor]
    for each in kept:
        if each["type"] == "aiperf:stack:Lifetime":
            each.pop("outputs", None)
    pending = {key: value for key, value in anchor.items() if key not in ("id", "outputs")}
    deployment["resources"] = kept
    deployment["pending_operations"] = [{"type": "creating", "resource": pending}]
    done(pulumi(runner, "stack", "import", stdin=json.dumps(state)))


@pytest.mark.parametrize(("mode", "command"), [("existing", "gc"), ("auto", "run")])
def test_unfinished_anchor_is_removed(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    owners_namespace: str,
    mode: str,
    command: str,
) -> None:
    runner = make_runner()
    if mode == "existing":
        where = {"mode": mode, "name": owners_namespace}
        runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    kill_while_the_anchor_is_made(runner)
    left = cluster.of_stack(runner.name)
    assert left

    refused = pulumi(runner, "up", "-y", "--skip-preview")
    assert refused.code != 0
    said = " ".join((refused.out + refused.errors).split())
    assert f"ConfigMap anchor-{runner.name} of an `up` that was killed" in said
    assert f"aiperf-svc gc {runner.name}. Nothing was changed" in said
    assert cluster.of_stack(runner.name) == left

    if command == "gc":
        collected = runner.call("gc", runner.name, "--yes")
        assert collected.code == ExitCode.OK, collected.errors
    else:
        with runner.start("run", runner.name, "--yes", "--ui", "plain") as running:
            running.wait_for("removing what a killed `pulumi up` was creating: ConfigMap")
            running.wait_for(UP)
            running.send(signal.SIGINT)
            ended = running.end()
        assert ended.code == ExitCode.INTERRUPTED, ended.errors
    assert cluster.left_of(runner.name) == []
    state = json.loads(done(pulumi(runner, "stack", "export")))
    assert not state["deployment"].get("pending_operations")
