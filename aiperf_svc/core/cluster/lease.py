"""Decides who may remove or change a stack, from its Lease in the cluster.

Stacks are found by label, but a label does not identify the owner: state folders, backends and
machines differ. So each stack has a Lease, readable by every user who can remove the stack:

    metadata.annotations  owner, `user@host` of the last `pulumi up`; and the last renewal by the
                          deadline's pod, which shows that the stack is within its time to live
    metadata.labels       the run
    spec                  the process that currently works on the stack, and its last renewal

A stack is *held* while the process in `spec` renews the Lease, and *alive* while the deadline's pod
renews it. No other process changes a held stack. Only a machine with a record or state of an alive
stack changes that stack. A take-over is explicit: the new holder is written to
`spec`, where the old holder reads it.

All times are the API server's, since the clocks of two machines may differ.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import OWNER_ANNOTATION, RENEWED_ANNOTATION, RUN_LABEL, STACK_LABEL

HELD_S = 40
"""Seconds without renewal after which a process no longer holds the stack."""
RENEW_S = 10.0
"""Seconds between two renewals by that process."""
ALIVE_S = 120.0
"""Seconds after which the deadline's pod counts as gone. It renews four times in that time."""
_HOLDER = re.compile(
    r"(?P<owner>\S+@(?P<host>\S+)) process (?P<pid>\d+) (?P<token>\w+)(?: (?P<space>\w+))?"
)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that works on a stack."""

    owner: str
    """`user@host`."""
    host: str
    """Name of the machine, since `owner` need not end with it."""
    pid: int
    token: str
    """Random text, since process numbers are reused."""
    space: str = ""
    """PID namespace of the process number: two containers may share a host name. Empty: unknown."""

    @property
    def identity(self) -> str:
        owner = self.owner if self.owner.endswith(f"@{self.host}") else f"{self.owner}@{self.host}"
        return f"{owner} process {self.pid} {self.token} {self.space}".rstrip()

    def __str__(self) -> str:
        return f"{self.identity.partition(' ')[0]} (process {self.pid})"


class StackLease(msgspec.Struct, frozen=True, kw_only=True):
    stack: str
    namespace: str
    owner: str
    run_id: str
    created: datetime
    holder: str = ""
    """Identity of the process that works on the stack; empty if none does."""
    acquired: datetime | None = None
    """Time at which that process began."""
    renewed: datetime | None = None
    held_s: int = HELD_S
    alive: datetime | None = None
    """Last renewal by the deadline's pod."""
    version: str = ""
    """Version of the object: an update of any other version is refused."""

    def is_held(self, now: datetime) -> bool:
        """Return whether a process works on the stack."""
        if not self.holder or self.renewed is None:
            return False
        return now < self.renewed + timedelta(seconds=self.held_s)

    def is_alive(self, now: datetime) -> bool:
        """Return whether the stack is starting or within its time to live."""
        last = max(self.created, self.alive or self.created)
        return now < last + timedelta(seconds=ALIVE_S)

    @property
    def holder_text(self) -> str:
        """Describe the process that works on the stack or, without one, the owner."""
        known = parse_holder(self.holder)
        return str(known) if known else self.holder or self.owner or "an unknown process"


class Use(StrEnum):
    FREE = "free"
    HELD = "held"
    """A process works on it."""
    ALIVE = "alive"
    """It has another owner and has not removed itself yet."""


def read_lease(found: Mapping[str, Any]) -> StackLease:
    metadata, spec = found["metadata"], found.get("spec") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    return StackLease(
        stack=labels.get(STACK_LABEL, ""),
        namespace=metadata.get("namespace", ""),
        owner=annotations.get(OWNER_ANNOTATION, ""),
        run_id=labels.get(RUN_LABEL, ""),
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        holder=spec.get("holderIdentity") or "",
        acquired=_time(spec.get("acquireTime")),
        renewed=_time(spec.get("renewTime")),
        held_s=spec.get("leaseDurationSeconds") or HELD_S,
        alive=_time(annotations.get(RENEWED_ANNOTATION)),
        version=metadata.get("resourceVersion", ""),
    )


def parse_holder(identity: str) -> Holder | None:
    """Parse the identity of one of our processes; None for any other text."""
    found = _HOLDER.fullmatch(identity)
    if found is None:
        return None
    return Holder(
        owner=found["owner"],
        host=found["host"],
        pid=int(found["pid"]),
        token=found["token"],
        space=found["space"] or "",
    )


def use_of(
    lease: StackLease,
    *,
    now: datetime,
    me: Holder,
    is_own: bool,
    is_running: Callable[[int], bool],
) -> Use:
    """Return whether others use the stack. `is_own`: this machine has a record or the state of it.
    `is_running` returns whether a process with that number runs on this machine."""
    if lease.holder != me.identity and lease.is_held(now):
        known = parse_holder(lease.holder)
        # A killed process of this machine holds nothing, so its Lease need not expire first.
        is_here = known is not None and known.space != "" and known.space == me.space
        if known is None or not is_here or is_running(known.pid):
            return Use.HELD
    return Use.ALIVE if not is_own and lease.is_alive(now) else Use.FREE


def describe_holder(lease: StackLease, use: Use, now: datetime) -> str:
    """Describe the use of a stack and its user."""
    run = f" (run {lease.run_id})" if lease.run_id else ""
    where = f"stack {lease.stack} in namespace {lease.namespace}{run}"
    if use is Use.HELD and lease.renewed is not None:
        ago_s = max(0.0, (now - lease.renewed).total_seconds())
        return f"{lease.holder_text} works on {where}, and renewed its Lease {ago_s:.0f} s ago"
    return (
        f"{where} belongs to {lease.owner or 'an unknown owner'}: this machine has no record or "
        "state of it, and it is within its time to live"
    )


class Step(StrEnum):
    """Next action of a process that works on the stack, regarding the Lease."""

    CLAIM = "claim"
    RENEW = "renew"
    NOTHING = "nothing"
    LOST = "lost"
    """Another process holds it."""
    EXPIRED = "expired"
    """Another process took the Lease because this one had not renewed it in time."""


def next_step(
    lease: StackLease,
    *,
    now: datetime,
    me: Holder,
    held_until: datetime | None,
    is_running: Callable[[int], bool],
) -> Step:
    """Decide the next step of the process `me`. `held_until` is when its last renewal expires;
    None: it has not held the Lease before."""
    if lease.holder == me.identity:
        is_due = lease.renewed is None or now >= lease.renewed + timedelta(seconds=RENEW_S)
        return Step.RENEW if is_due else Step.NOTHING
    if held_until is not None and lease.acquired is not None and lease.acquired >= held_until:
        # Even if that process has since released it and keeps the stack.
        return Step.EXPIRED
    if held_until is not None and lease.holder:
        # Before that time only an explicit take-over writes another holder.
        return Step.LOST
    use = use_of(lease, now=now, me=me, is_own=True, is_running=is_running)
    return Step.LOST if use is Use.HELD else Step.CLAIM


def claimed(lease: StackLease, *, now: datetime, me: Holder) -> Json:
    """Return the changes with which `me` acquires or renews the Lease. The API server refuses them
    if the object has changed since."""
    spec: Json = {"renewTime": format_time(now), "leaseDurationSeconds": HELD_S}
    if lease.holder != me.identity:
        spec |= {"holderIdentity": me.identity, "acquireTime": format_time(now)}
    return {"metadata": {"resourceVersion": lease.version}, "spec": spec}


def released(lease: StackLease) -> Json:
    """Return the changes with which the holder releases the Lease."""
    return {"metadata": {"resourceVersion": lease.version}, "spec": {"holderIdentity": None}}


def format_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except (TypeError, ValueError):
        return None
