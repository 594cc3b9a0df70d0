"""Plain `pulumi up` does not touch a stack that is in use or belongs to another state."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import HOLDER, Users
from aiperf_svc.adapters.cluster.teardown.inventory import Inventory
from aiperf_svc.core.cluster.lease import StackLease
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.stack import settings
from tests.support.recording import STACK, Recording, State, benchmark, record
from tests.support.releases import release_target, simple

HELD = f"alice@build (process 42) works on stack {STACK} in namespace n"
LEASE = StackLease(
    stack=STACK, namespace="n", owner="alice@build", run_id="cafe", created=datetime.now(UTC)
)
Use = Callable[[Users], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Return a function that sets the users of the stack. Without a call there are none."""
    found = Users()

    def choose(users: Users) -> None:
        nonlocal found
        found = users

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[None]:
        yield None

    async def users_of(_: None, stack: str, *, namespace: str | None) -> Users:
        assert (stack, namespace) == (STACK, None)
        return found

    monkeypatch.setattr(settings, "connect", connect)
    monkeypatch.setattr(settings, "users_of", users_of)
    return choose


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the warnings about other stacks. The program emits other warnings too."""
    lines = list[str]()

    def warn(text: str) -> None:
        if text.startswith(f"stack {STACK} is up"):
            lines.append(text)

    monkeypatch.setattr(pulumi.log, "warn", warn)
    return lines


def _up(state: State | None = None) -> Recording:
    return record(STACK, {"aiperf:benchmark": benchmark()}, state=state)


def test_plain_up_of_held_stack_is_refused(use: Use) -> None:
    use(Users(holder=HELD))
    with pytest.raises(pulumi.RunError, match=r"alice@build .* Nothing was changed"):
        _up()


def test_plain_up_beside_another_states_stack_is_refused(use: Use, warned: list[str]) -> None:
    left = _up().state
    use(Users(alive={"uid-of-theirs": LEASE}))
    for state in ({}, left):
        with pytest.raises(pulumi.RunError, match="Nothing was changed") as refused:
            _up(state)
        assert str(refused.value).startswith(
            f"stack {STACK} is up already in namespace n, of alice@build, from another state than "
            f"this one's; use another name, or remove it: aiperf-svc gc {STACK} (--take-over"
        )
    assert warned == []


def test_plain_up_changes_live_stack_of_its_state(use: Use, warned: list[str]) -> None:
    first = _up()
    use(Users(alive={f"uid-of-anchor-{STACK}": LEASE}))
    assert _up(first.state).manifests == first.manifests
    assert warned == []


def test_plain_up_names_leftovers_of_a_killed_one(use: Use) -> None:
    metadata = {"name": "aiperf-bench-1", "uid": "own"}
    state = {"ns": {"type": "kubernetes:core/v1:Namespace", "outputs": {"metadata": metadata}}}
    use(Users(unfinished={"uid-of-anchor": "aiperf-bench-1"}))
    with pytest.raises(pulumi.RunError, match=f"killed or .* aiperf-svc gc {STACK}. Nothing was"):
        _up(state)
    # Neither another namespace nor an anchor of this state is an obstacle.
    for other in ({"uid-of-anchor": "aiperf-bench-2"}, {"own": "aiperf-bench-1"}):
        use(Users(unfinished=other))
        assert _up(state).manifests


def test_plain_up_warns_if_its_state_is_unreadable(use: Use, warned: list[str]) -> None:
    use(Users(alive={"uid-of-theirs": LEASE}))
    assert _up(None).manifests
    (line,) = warned
    assert line.startswith(f"stack {STACK} is up in namespace n (of alice@build), and whether this")


def test_plain_up_needs_to_know_all_users(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    async def users_of(*_: Any, **__: Any) -> Users:
        raise Refused("etcdserver: request timed out (500)", status=500, reason="")

    use(Users())
    monkeypatch.setattr(settings, "users_of", users_of)
    monkeypatch.setattr(settings, "RETRY_S", 0.0)
    with pytest.raises(pulumi.RunError, match=r"unknown: etcdserver: .* Nothing was changed"):
        _up()


def test_plain_up_takes_over_no_cluster_role(
    use: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    role, file = simple("ClusterRole", "c", "rbac.authorization.k8s.io/v1"), tmp_path / "role.yaml"
    file.write_text(yaml.safe_dump(role))
    keys = {"cluster_scoped": ["ClusterRole/c"], "from": {"manifests": str(file)}}
    config = {"aiperf:benchmark": benchmark(target=release_target(**keys))}
    found = ObjectRef(kind="ClusterRole", namespace="", name="c", uid="1", path="")
    there = Inventory(namespace="", objects=(found,), not_listed=())

    async def list_cluster_scoped(_: None) -> Inventory:
        return there

    use(Users())
    monkeypatch.setattr(settings, "list_cluster_scoped", list_cluster_scoped)
    with pytest.raises(pulumi.RunError, match=r"has ClusterRole/c already, .* Nothing was"):
        record(STACK, config)
    unread = ("clusterroles.rbac.authorization.k8s.io (500)",)
    there = Inventory(namespace="", objects=(), not_listed=unread)
    with pytest.raises(pulumi.RunError, match="it is unknown whether the stack would take over"):
        record(STACK, config)
    there = Inventory(namespace="", objects=(), not_listed=())
    assert record(STACK, config).manifest("ClusterRole", "c")


def test_runner_and_manifests_skip_the_user_check(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Users(holder=HELD))
    for name, value in ((HOLDER, "alice@build process 42 a1"), ("AIPERF_RENDER_TO", "/manifests")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert _up().manifests


def test_silent_cluster_is_left_to_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[None]:
        raise EnvironmentProblem("no response")
        yield

    monkeypatch.setattr(settings, "connect", connect)
    assert _up().manifests
