"""A plain `pulumi up` is killed before it writes an object to its state. `gc` and the next run
remove its anchor, and the next `up` recreates the other objects. The moment is too short to hit, so
the state is edited to match such a kill."""

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
ANCHOR, KEYS = "**ConfigMap::anchor", "**Secret::keys"
BEFORE = ("**Benchmark::benchmark", "**Lifetime::lifetime", "**Access::access", "**Namespace::*")
"""URN patterns of the anchor, the keys and what they depend on."""


def pulumi(runner: Runner, *words: str) -> Ended:
    command = ("pulumi", *words, "-s", runner.name, "--non-interactive")
    environ = plain_environ(runner)
    return attempt(command, environ=environ, folder=runner.folder, timeout_s=COMMAND_S)


def done(ended: Ended) -> str:
    assert ended.code == 0, ended.out + ended.errors
    return ended.out


def kill_while_made(runner: Runner, *targets: str) -> None:
    """Create these objects, except that the state does not yet contain the last of them."""
    in_checkout(runner)
    backend = runner.state_home / "backend"
    backend.mkdir(parents=True)
    done(pulumi(runner, "stack", "select", "--create"))
    flags = [part for each in (*BEFORE, *targets) for part in ("--target", each)]
    done(pulumi(runner, "up", "-y", "--skip-preview", *flags))
    # `pulumi stack import` would drop pending operations.
    file = backend / ".pulumi" / "stacks" / "aiperf" / f"{runner.name}.json"
    state: dict[str, Any] = json.loads(file.read_bytes())
    latest = state["checkpoint"]["latest"]
    name = targets[-1].removeprefix("**")
    (made,) = (each for each in latest["resources"] if each["urn"].endswith(name))
    latest["resources"].remove(made)
    for each in latest["resources"]:
        if each["type"] == "aiperf:stack:Lifetime" and targets[-1] == ANCHOR:
            each.pop("outputs", None)
    pending = {key: value for key, value in made.items() if key not in ("id", "outputs")}
    latest["pending_operations"] = [{"type": "creating", "resource": pending}]
    file.write_text(json.dumps(state))


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
    kill_while_made(runner, ANCHOR)
    left = cluster.of_stack(runner.name)
    assert left

    refused = pulumi(runner, "up", "-y", "--skip-preview")
    assert refused.code != 0
    output = " ".join((refused.out + refused.errors).split())
    assert f"has the beginning of stack {runner.name}, from an `up` that was killed" in output
    assert f"aiperf-svc gc {runner.name}. Nothing was changed" in output
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


def test_next_up_recreates_unfinished_keys(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    kill_while_made(runner, ANCHOR, KEYS)
    # The keys are new, and so is the run label.
    runner.change(lambda benchmark: benchmark["load"].update(concurrency=4))
    done(pulumi(runner, "up", "-y", "--skip-preview"))
    done(pulumi(runner, "destroy", "-y", "--skip-preview"))
    assert cluster.left_of(runner.name) == []
