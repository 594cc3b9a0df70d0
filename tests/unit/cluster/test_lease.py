"""Who may remove or change a stack."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.cluster.teardown import deadline
from aiperf_svc.core.cluster import lease as leases
from aiperf_svc.core.cluster.lease import (
    ALIVE_S,
    HELD_S,
    RENEW_S,
    Holder,
    StackLease,
    Step,
    Use,
    claimed,
    describe_holder,
    next_step,
    parse_holder,
    read_lease,
    use_of,
)
from aiperf_svc.plan import identity

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ME = Holder(owner="bob@laptop", host="laptop", pid=7, token="b0", space="5a")
ALICE = Holder(owner="alice@build", host="build", pid=42, token="a1", space="77")
BOB_BEFORE = Holder(owner="bob@laptop", host="laptop", pid=6, token="b1", space="5a")
LONG_AGO = NOW - timedelta(days=1)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def lease(by: Holder | None = None, renewed_s: float = 3.0, **more: Any) -> StackLease:
    found = StackLease(
        stack="s", namespace="n", owner="alice@build", run_id="cafe", created=LONG_AGO,
        holder=by.identity if by else "", renewed=ago(renewed_s), acquired=ago(60.0),
        version="5",
    )  # fmt: skip
    return msgspec.structs.replace(found, **more)


def use(found: StackLease, *, is_own: bool, running: tuple[int, ...] = ()) -> Use:
    return use_of(found, now=NOW, me=ME, is_own=is_own, is_running=running.__contains__)


@pytest.mark.parametrize("is_own", [True, False])
def test_stack_renewed_elsewhere_is_held(is_own: bool) -> None:
    assert use(lease(ALICE), is_own=is_own) is Use.HELD
    assert use(lease(ALICE, HELD_S + 1.0), is_own=is_own) is Use.FREE


def test_killed_local_process_holds_no_lease() -> None:
    assert use(lease(BOB_BEFORE), is_own=True, running=(6,)) is Use.HELD
    assert use(lease(BOB_BEFORE), is_own=True) is Use.FREE
    assert use(lease(ME), is_own=True, running=(7,)) is Use.FREE


@pytest.mark.parametrize("space", ["", "6b"])
def test_container_with_same_host_name_holds_its_lease(space: str) -> None:
    elsewhere = msgspec.structs.replace(BOB_BEFORE, space=space)
    assert use(lease(elsewhere), is_own=True) is Use.HELD
    assert use(lease(elsewhere, HELD_S + 1.0), is_own=True) is Use.FREE


def test_living_foreign_stack_is_not_free() -> None:
    assert use(lease(alive=ago(30.0)), is_own=False) is Use.ALIVE
    assert use(lease(alive=ago(30.0)), is_own=True) is Use.FREE
    assert use(lease(alive=ago(ALIVE_S + 1.0)), is_own=False) is Use.FREE
    # Its deadline pod has not started yet.
    assert use(lease(created=ago(5.0)), is_own=False) is Use.ALIVE


def test_holder_from_another_program_is_respected() -> None:
    assert use(lease(holder="controller-0"), is_own=True) is Use.HELD


def test_description_names_user_stack_and_time() -> None:
    assert describe_holder(lease(ALICE), Use.HELD, NOW) == (
        "alice@build (process 42) works on stack s in namespace n (run cafe), and renewed its "
        "Lease 3 s ago"
    )
    assert describe_holder(lease(), Use.ALIVE, NOW) == (
        "stack s in namespace n (run cafe) belongs to alice@build: this machine has no "
        "record or state of it, and it is within its time to live"
    )


def test_an_identity_is_read_as_it_was_written() -> None:
    named = Holder(owner="team@ci", host="runner-1", pid=5, token="ff")
    assert ME.identity == "bob@laptop process 7 b0 5a"
    assert parse_holder(ME.identity) == ME
    read = parse_holder(named.identity)
    assert read is not None
    assert (read.host, read.pid, str(read)) == ("runner-1", 5, "team@ci@runner-1 (process 5)")
    assert parse_holder("somebody") is None


def step(found: StackLease, *, held_until: datetime | None = None) -> Step:
    is_running = (6).__ne__
    return next_step(found, now=NOW, me=ME, held_until=held_until, is_running=is_running)


def test_free_lease_is_claimed_and_renewed() -> None:
    assert step(lease()) is Step.CLAIM
    assert step(lease(BOB_BEFORE)) is Step.CLAIM
    assert step(lease(ME, RENEW_S - 1.0), held_until=NOW) is Step.NOTHING
    assert step(lease(ME, RENEW_S), held_until=NOW) is Step.RENEW


def test_lease_taken_by_another_process_is_lost() -> None:
    assert step(lease(ALICE)) is Step.LOST
    # Even if that process has ended since.
    assert step(lease(BOB_BEFORE, HELD_S + 1.0), held_until=NOW) is Step.LOST
    assert step(lease(), held_until=NOW) is Step.CLAIM


def test_lease_taken_after_its_time_has_expired() -> None:
    assert step(lease(ALICE), held_until=ago(59.0)) is Step.LOST
    assert step(lease(ALICE), held_until=ago(60.0)) is Step.EXPIRED
    # Another process worked on the stack and kept it while this process was suspended.
    assert step(lease(), held_until=ago(60.0)) is Step.EXPIRED
    assert step(lease(), held_until=ago(59.0)) is Step.CLAIM


def test_claim_has_the_version_and_the_process() -> None:
    changes = claimed(lease(ALICE), now=NOW, me=ME)
    assert changes["metadata"] == {"resourceVersion": "5"}
    assert changes["spec"] == {
        "holderIdentity": ME.identity, "leaseDurationSeconds": HELD_S,
        "acquireTime": "2026-01-01T12:00:00.000000Z", "renewTime": "2026-01-01T12:00:00.000000Z",
    }  # fmt: skip
    assert "acquireTime" not in claimed(lease(ME), now=NOW, me=ME)["spec"]


def test_a_lease_is_read_from_the_api() -> None:
    found = {
        "metadata": {
            "name": "owner-s", "namespace": "n", "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T11:00:00Z",
            "labels": {"aiperf.dev/stack": "s", "aiperf.dev/run": "cafe"},
            "annotations": {
                "aiperf.dev/owner": "alice@build", "aiperf.dev/renewed": "2026-01-01T11:59:00Z",
            },
        },
    }  # fmt: skip
    fresh = read_lease(found)
    assert (fresh.holder, fresh.renewed, fresh.alive) == ("", None, ago(60.0))
    spec = claimed(fresh, now=NOW, me=ME)["spec"]
    held = read_lease({**found, "spec": spec})
    assert held.is_held(NOW)
    assert (held.holder, held.acquired) == (ME.identity, NOW)


def test_deadline_renews_the_shared_annotation() -> None:
    assert deadline.RENEWED_ANNOTATION == identity.RENEWED_ANNOTATION
    assert deadline.RENEW_S < leases.ALIVE_S / 2
