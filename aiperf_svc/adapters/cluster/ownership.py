"""Reads, claims and renews the Lease of a stack. `core/cluster/lease.py` decides."""

import asyncio
import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef, find_object, list_allowed
from aiperf_svc.adapters.cluster.teardown.inventory import StackObjects, namespaces_of
from aiperf_svc.adapters.host.child_processes import is_alive, process_space
from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.core.cluster.lease import (
    HELD_S,
    Holder,
    StackLease,
    Step,
    Use,
    claimed,
    describe_holder,
    next_step,
    parse_holder,
    read_lease,
    released,
    use_of,
)
from aiperf_svc.domain.errors import BenchmarkFailed, EnvironmentProblem, error_text
from aiperf_svc.plan.identity import ANCHOR, LEASE, STACK_LABEL

OWNER, HOLDER = "AIPERF_OWNER", "AIPERF_HOLDER"
"""Environment variables: the owner to use instead of `user@host`, and the process that runs
`pulumi` and has already checked that no other process works on the stack."""
LEASES = "/apis/coordination.k8s.io/v1"
POLL_S = 1.0
"""Seconds between two reads of the Lease. The watch for losses polls at the same interval, and the
reason for a loss should be available by then."""
NOTICE_S = 3.0
"""Seconds between taking a held Lease and the first deletion. In this time the other process reads
the Lease and reports who took the stack."""
ATTEMPTS = 3
NEW_S = 15.0
"""Age of a root up to which its Lease may be missing because `up` has not created it yet."""

Say = Callable[[str], None]


class StackInUse(EnvironmentProblem):
    """Raised when another process works on a stack, or the stack has another owner."""


class TakenOver(BenchmarkFailed):
    """Raised when another process has taken over the stack of a run."""

    is_in_use = False
    """True if the other process took over after this process's Lease had expired."""


def owner_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the owner of stacks that are created here: `user@host`, or AIPERF_OWNER."""
    configured = "".join(environ.get(OWNER, "").split())
    if configured:
        return configured
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def this_process(environ: Mapping[str, str] = os.environ) -> Holder:
    return Holder(
        owner=owner_name(environ),
        host=socket.gethostname(),
        pid=os.getpid(),
        token=secrets.token_hex(4),
        space=process_space(),
    )


def lease_path(stack: str, namespace: str) -> str:
    return f"{LEASES}/namespaces/{namespace}/leases/{LEASE}-{stack}"


async def find_lease(cluster: Cluster, stack: str, namespace: str) -> StackLease | None:
    """Read a stack's Lease; None if it has none. Raises Refused, Unreachable."""
    found = await find_object(cluster, lease_path(stack, namespace))
    return None if found is None else read_lease(found)


class Users(NamedTuple):
    """Who uses stacks of a name."""

    holder: str = ""
    """Description of the process that works on one of them; empty if there is none."""
    alive: Mapping[str, StackLease] = {}
    """Stacks that are starting or within their time to live, by the UID of their anchor."""
    unfinished: Mapping[str, str] = {}
    """Namespaces with a stack's root and no Lease, by the UID of the root. `up` creates the Lease
    after the root: an `up` was killed there, or is starting."""


async def users_of(cluster: Cluster, stack: str, *, namespace: str | None) -> Users:
    """Return who uses any stack of this name; nobody if the user may not read that. Raises
    Unreachable, and Refused if the API server fails."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    selector = f"{STACK_LABEL}={stack}"
    try:
        listed = await cluster.get(f"{LEASES}{scope}/leases", labelSelector=selector)
        now, me = await cluster.now(), this_process()
        leases = [read_lease(each) for each in listed["items"]]
        for each in leases:
            if _use(each, now, me, is_own=True) is Use.HELD:
                return Users(holder=describe_holder(each, Use.HELD, now))
        alive = {}
        for each in leases:
            if not each.is_alive(now):
                continue
            inside = f"/api/v1/namespaces/{each.namespace}"
            anchor = await find_object(cluster, f"{inside}/configmaps/{ANCHOR}-{stack}")
            if anchor is not None:
                alive[str(anchor["metadata"]["uid"])] = each
    except Refused as error:
        if error.is_temporary:
            raise
        return Users()
    leased, unfinished = {each.namespace for each in leases}, {}
    for path in (f"/api/v1{scope}/configmaps", *(() if scope else ("/api/v1/namespaces",))):
        for found in await list_allowed(cluster, path, labelSelector=selector):
            metadata = found["metadata"]
            place = metadata.get("namespace", metadata["name"])
            is_root = "namespace" not in metadata or metadata["name"] == f"{ANCHOR}-{stack}"
            if is_root and place not in leased and "deletionTimestamp" not in metadata:
                unfinished[str(metadata["uid"])] = str(place)
    return Users(alive=alive, unfinished=unfinished)


def other_state_text(stack: str, namespaces: Iterable[str], owners: Iterable[str]) -> str:
    """Describe stacks of this name that were created from another state, and the remedy."""
    names = ", ".join(dict.fromkeys(each for each in owners if each))
    whose = f", of {names}" if names else ""
    return (
        f"stack {stack} is up already in namespace {', '.join(namespaces)}{whose}, from another "
        f"state than this one's; use another name, or remove it: aiperf-svc gc {stack} "
        "(--take-over while it is in use)"
    )


async def refuse_others(
    existing: Iterable[ObjectRef], wanted: StackObjects, cluster: Cluster
) -> None:
    """Check that all objects found are roots of the stack. Raises EnvironmentProblem with the
    owners of the others."""
    others = [each for each in existing if each.uid not in (wanted.own or ())]
    if not others:
        return
    places = namespaces_of(others)
    owners = []
    for namespace in places:
        with suppress(Refused):
            lease = await find_lease(cluster, wanted.stack, namespace)
            owners += [lease.owner] if lease else []
    raise EnvironmentProblem(other_state_text(wanted.stack, places, owners))


async def made_while_killed(
    cluster: Cluster,
    stack: str,
    objects: Iterable[ObjectRef],
    making: Collection[tuple[str, str]],
) -> list[ObjectRef]:
    """Return the objects that a killed `up` was creating. An object whose Lease has another owner
    is excluded: a process creates the Lease after the object, so that process was not killed.
    Raises Refused, Unreachable."""
    found = []
    for each in objects:
        if (each.namespace, each.name) in making:
            lease = await find_lease(cluster, stack, each.namespace or each.name)
            if lease is None or lease.owner == owner_name():
                found.append(each)
    return found


async def refuse_held(cluster: Cluster, stack: str, namespace: str, me: Holder) -> None:
    """Raise StackInUse if a process other than `me` works on the stack, as far as the user may read
    its Lease. Raises Refused, Unreachable."""
    try:
        lease = await find_lease(cluster, stack, namespace)
    except Refused as error:
        if error.status != 403:
            raise
        return
    if lease is not None:
        now = await cluster.now()
        if _use(lease, now, me, is_own=True) is Use.HELD:
            raise StackInUse(
                f"{describe_holder(lease, Use.HELD, now)}; wait for it, or remove the stack "
                f"anyway: aiperf-svc gc {stack} --take-over"
            )


async def wait_for_lease(cluster: Cluster, stack: str, root: ObjectRef) -> None:
    """Wait until the Lease of a stack exists, or its root is too old for an `up` that is about to
    create it. Raises Refused, Unreachable."""
    if not root.created:
        return
    end = datetime.fromisoformat(root.created) + timedelta(seconds=NEW_S)
    namespace = root.namespace or root.name
    while await cluster.now() < end:
        if await find_lease(cluster, stack, namespace) is not None:
            return
        await asyncio.sleep(POLL_S)


async def claim(
    cluster: Cluster,
    stack: str,
    namespace: str,
    *,
    me: Holder,
    is_own: bool,
    take_over: bool,
    say: Say,
) -> bool:
    """Take the Lease of a stack that is to be removed, if it has one. Returns whether it was taken
    from a process that works on the stack.

    Raises StackInUse if the stack is in use, unless it is taken over.
    """
    for _ in range(ATTEMPTS):
        try:
            lease = await find_lease(cluster, stack, namespace)
        except Refused as error:
            if error.status == 403 and is_own:
                return False
            raise StackInUse(f"cannot read who uses stack {stack}: {error}") from error
        if lease is None:
            return False
        now = await cluster.now()
        use = _use(lease, now, me, is_own=is_own)
        if use is not Use.FREE and not take_over:
            remedy = "wait for it" if use is Use.HELD else "ask its owner"
            raise StackInUse(
                f"{describe_holder(lease, use, now)}; {remedy}, or remove the stack anyway with "
                "--take-over"
            )
        try:
            await cluster.patch(lease_path(stack, namespace), claimed(lease, now=now, me=me))
        except Refused as error:
            if error.status == 409:
                continue
            if error.status in (403, 404):
                # Without this right the deletion itself would fail.
                return False
            raise
        if use is not Use.FREE:
            say(f"taking over: {describe_holder(lease, use, now)}")
        if use is Use.HELD:
            await asyncio.sleep(NOTICE_S)
        return use is Use.HELD
    raise StackInUse(f"the Lease of stack {stack} keeps changing: another process works on it")


async def take_from_process(
    cluster: Cluster, stack: str, namespaces: Iterable[str], *, pid: int, me: Holder, say: Say
) -> bool:
    """Take the Leases that a process of this machine holds; that process then ends its run. Return
    whether it held any. Raises Refused, Unreachable, StackInUse."""
    is_held = False
    for namespace in namespaces:
        lease = await find_lease(cluster, stack, namespace)
        holder = parse_holder(lease.holder) if lease is not None else None
        if holder is not None and (holder.pid, holder.space) == (pid, me.space):
            is_held = True
            await claim(cluster, stack, namespace, me=me, is_own=True, take_over=True, say=say)
    return is_held


class LeaseKeeper:
    """Holds the Lease of a stack: renews it, and notices when another process takes it."""

    def __init__(self, cluster: Cluster, stack: str, me: Holder, say: Say) -> None:
        self.cluster, self._stack, self.say = cluster, stack, say
        self.me = me
        self._namespace = ""
        self._held_until: datetime | None = None
        """Time until which the Lease is held, by the API server's clock."""
        self._ahead = timedelta()
        """How far the API server's clock is ahead of this machine's."""
        self._is_measured = False
        self._is_reported = False
        """Whether the user has seen the message that the Lease cannot be renewed."""
        self._keeping: asyncio.Task[None] | None = None
        self._has_begun, self._is_taken = asyncio.Event(), asyncio.Event()
        self.loss: TakenOver | None = None
        """The process that took the stack, and the time."""

    def begin(self, namespace: str) -> None:
        """Hold the Lease in this namespace from now on."""
        if self._keeping is None and namespace:
            self._namespace = namespace
            self._keeping = asyncio.create_task(self._keep(), name="keep the lease")
            self._has_begun.set()

    async def namespace(self) -> str:
        """Wait until the Lease exists, and return the stack's namespace."""
        await self._has_begun.wait()
        return self._namespace

    async def taken(self) -> TakenOver:
        """Wait until another process takes the stack."""
        await self._is_taken.wait()
        assert self.loss is not None
        return self.loss

    async def close(self, *, is_kept: bool) -> None:
        """Stop. The Lease of a stack that is kept is released."""
        if self._keeping is None:
            return
        await cancel(self._keeping)
        if not is_kept or self.loss is not None:
            return
        with suppress(Refused, Unreachable):
            lease = await find_lease(self.cluster, self._stack, self._namespace)
            if lease is not None and lease.holder == self.me.identity:
                await self.cluster.patch(self._path, released(lease))

    @property
    def _path(self) -> str:
        return lease_path(self._stack, self._namespace)

    async def _keep(self) -> None:
        while self.loss is None:
            try:
                await self._step()
                self._is_reported = False
            except Unreachable:
                # `watched_contact` reports it.
                self._is_measured = False
            except Refused as error:
                # Deleted with the stack, or changed since it was read.
                if error.status not in (404, 409):
                    self._tell(str(error))
            except Exception as error:
                # The run continues, and the next renewal may succeed.
                self._tell(error_text(error))
            await asyncio.sleep(POLL_S)

    def _tell(self, why: str) -> None:
        if not self._is_reported:
            self.say(f"others cannot see that this process works on the stack: {why}")
        self._is_reported = True

    async def _step(self) -> None:
        lease = await find_lease(self.cluster, self._stack, self._namespace)
        if lease is None:
            return
        if not self._is_measured:
            local_time = datetime.fromtimestamp(time.time(), tz=lease.created.tzinfo)
            self._ahead = await self.cluster.now() - local_time
            self._is_measured = True
        now = datetime.fromtimestamp(time.time(), tz=lease.created.tzinfo) + self._ahead
        step = next_step(
            lease, now=now, me=self.me, held_until=self._held_until, is_running=is_alive
        )
        if step in (Step.LOST, Step.EXPIRED):
            since = f" at {lease.acquired:%H:%M:%S} UTC" if lease.acquired else ""
            taken = f"stack {self._stack} was taken over by {lease.holder_text}{since}"
            late = f"; this process had not renewed its Lease for {HELD_S} s, and leaves it alone"
            self.loss = TakenOver(taken + (late if step is Step.EXPIRED else ""))
            self.loss.is_in_use = step is Step.EXPIRED
            self._is_taken.set()
        elif step is not Step.NOTHING:
            await self.cluster.patch(self._path, claimed(lease, now=now, me=self.me))
            self._held_until = now + timedelta(seconds=HELD_S)
            # The clocks may drift apart over hours.
            self._is_measured = False


def _use(lease: StackLease, now: datetime, me: Holder, *, is_own: bool) -> Use:
    return use_of(lease, now=now, me=me, is_own=is_own, is_running=is_alive)
