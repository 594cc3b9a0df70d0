"""`pulumi up` and `pulumi destroy` take equally long in every namespace mode. Nothing waits for
objects that are already deleted."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config, Stack, shrink

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

RATIO = 2.0
"""Limit relative to a namespace that Pulumi names. A missed end of a deletion takes minutes."""


def in_namespace(stack: Stack, **namespace: str) -> Stack:
    """Change the stack to use this namespace."""

    def change(benchmark: Config) -> None:
        benchmark["deployment"]["namespace"] = namespace

    stack.change(shrink)
    stack.change(change)
    return stack


def test_namespace_modes_take_equally_long(
    cluster: Cluster, make_stack: Callable[[], Stack], owners_namespace: str
) -> None:
    named = f"bench-smoke-{secrets.token_hex(3)}"
    stacks = {
        "auto": in_namespace(make_stack(), mode="auto"),
        "create": in_namespace(make_stack(), mode="create", name=named),
        "existing": in_namespace(make_stack(), mode="existing", name=owners_namespace),
    }
    before = cluster.of_namespace(owners_namespace)
    for stack in stacks.values():
        stack.up()
        stack.destroy()
        assert cluster.left_of(stack.name) == []
    assert cluster.of_namespace(owners_namespace) == before
    usual = stacks["auto"].took_s
    for mode, stack in stacks.items():
        for command in ("up", "destroy"):
            assert stack.took_s[command] <= RATIO * usual[command], (mode, command, stack.took_s)


def test_pulumi_copies_only_an_explicit_kubeconfig(make_stack: Callable[[], Stack]) -> None:
    stack = make_stack()
    stack.init()
    output = stack.pulumi("preview", "-s", stack.name)
    # The kubeconfig came from KUBECONFIG.
    assert kubeconfigs(stack)
    assert "writes copies of the kubeconfig" in output
    assert "removes itself" in output
    for each in kubeconfigs(stack):
        each.unlink()
    home = stack.folder / "its-home"
    (home / ".kube").mkdir(parents=True)
    shutil.copy(stack.environ.pop("KUBECONFIG"), home / ".kube" / "config")
    stack.environ["HOME"] = str(home)
    output = stack.pulumi("preview", "-s", stack.name)
    assert not kubeconfigs(stack)
    assert "writes copies of the kubeconfig" not in output


def test_plain_up_does_not_replace_a_pinned_image(
    cluster: Cluster, make_stack: Callable[[], Stack]
) -> None:
    stack = make_stack()
    pinned = f"registry.example/aiperf-svc@sha256:{'9f' * 32}"
    stack.change(lambda benchmark: benchmark["deployment"].update(image={"name": pinned}))
    for flags in ((), ("--skip-preview",)):
        stack.shortcuts = flags
        ended = stack.try_up()
        assert ended.code != 0
        text = " ".join((ended.out + ended.errors).split())
        assert f"AIPERF_IMAGE is {stack.environ['AIPERF_IMAGE']}, but deployment.image.name" in text
        assert f"pins another image by its digest: {pinned}" in text
    stack.may_exist = False
    assert cluster.of_stack(stack.name) == []


def kubeconfigs(stack: Stack) -> list[Path]:
    """Return the kubeconfigs that the provider left in the temporary folder."""
    return list((stack.folder / "tmp").glob("kubeconfig*"))
