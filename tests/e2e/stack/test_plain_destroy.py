"""`pulumi up` and `pulumi destroy` by hand take as long in every namespace mode: nothing waits for
what is gone already."""

import secrets
from collections.abc import Callable

import pytest
from real_cluster import Cluster
from real_stack import Config, Stack, modest

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

RATIO = 2.0
"""To a namespace of Pulumi's own naming. A deletion whose end is missed takes minutes."""


def in_namespace(stack: Stack, **namespace: str) -> Stack:
    """The stack, changed to use this namespace."""

    def change(benchmark: Config) -> None:
        benchmark["deployment"]["namespace"] = namespace

    stack.change(modest)
    stack.change(change)
    return stack


def test_no_namespace_mode_takes_much_longer_than_another_to_come_and_to_go(
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
