"""Plain `pulumi up` leaves a stack alone that somebody works on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pulumi
import pytest

from aiperf_svc.adapters.cluster.ownership import HOLDER, Users
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.stack import settings
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import plan_it
from tests.support.recording import stack_config

HELD = "alice@build (process 42) works on stack s in namespace n"


@pytest.fixture
def holders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the program, in front of a cluster in which somebody works on the stack."""

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[None]:
        yield None

    async def users_of(_: None, stack: str, *, namespace: str | None) -> Users:
        assert (stack, namespace) == ("s", None)
        return Users(holder=HELD)

    monkeypatch.setattr(settings, "connect", connect)
    monkeypatch.setattr(settings, "users_of", users_of)
    return settings


def _refuse(holders: ModuleType, *, environ: dict[str, str], render_to: str | None = None) -> None:
    config = parse_benchmark(stack_config("bench-smoke")["aiperf:benchmark"], "")
    cluster = holders.Cluster(
        kubeconfig=None, context=None, identifier=None, provider_version="1", render_to=render_to
    )
    holders.refuse_if_held(plan_it(config, stack="s", version="1"), cluster, environ)


def test_plain_up_of_held_stack_is_refused(holders: ModuleType) -> None:
    with pytest.raises(pulumi.RunError, match=r"alice@build .* Nothing was changed"):
        _refuse(holders, environ={})


def test_plain_up_beside_another_owners_stack_warns(
    holders: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def users_of(*_: Any, **__: Any) -> Users:
        return Users(other_owner="stack s is up in namespace n (run cafe), of alice@build")

    warned = list[str]()
    monkeypatch.setattr(holders, "users_of", users_of)
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    _refuse(holders, environ={})
    (line,) = warned
    assert "of alice@build; unless this state is that stack's, a second one is made" in line


def test_runner_and_manifests_skip_holder_check(holders: ModuleType) -> None:
    _refuse(holders, environ={HOLDER: "alice@build process 42 a1"})
    _refuse(holders, environ={}, render_to="/manifests")


def test_silent_cluster_is_left_to_provider(
    holders: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[None]:
        raise EnvironmentProblem("no response")
        yield

    monkeypatch.setattr(holders, "connect", connect)
    _refuse(holders, environ={})
