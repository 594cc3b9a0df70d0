"""Removes a stack: its pods at once, the rest with Pulumi, and objects unknown to Pulumi by label.

Only the cluster decides whether an object is gone. Pulumi's provider waits for events and can miss
one, so each of its attempts is watched.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.preflight.rights import Right, denied
from aiperf_svc.adapters.cluster.teardown.leaks import (
    USUAL_TYPES,
    LeakReport,
    describe_wait,
    find_left,
    wait_until_gone,
)
from aiperf_svc.adapters.cluster.teardown.removal import (
    release_from_queue,
    remove_by_label,
    remove_roots,
)
from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.pulumi.cli import Ended, PulumiCli
from aiperf_svc.adapters.pulumi.namesakes import refuse_namesakes
from aiperf_svc.adapters.pulumi.progress import Progress
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem, LeakError, Unverified
from aiperf_svc.domain.number_text import count, counted
from aiperf_svc.runner.signals import Interrupts

FOLLOW_S = 20.0
"""Time for the cluster's own garbage collection to follow a deletion."""
GONE_S = 60.0
"""Time for objects that were deleted by label: pods may use their grace period."""
ATTEMPTS = 3
QUIET_S, WATCH_S = 4.0, 1.0
"""Time without any step of the CLI before the cluster is checked, and time between two checks."""
GONE_CHECKS = 2
"""Consecutive checks that must find everything gone that the CLI waits for. Before, the events may
still arrive."""
REPORT_S = 5.0
"""Longest time without a line about what a removal waits for."""


@contextlib.asynccontextmanager
async def wait_reports(
    cluster: Cluster, record: RunRecord, say: Say, *, step: str = ""
) -> AsyncIterator[Say]:
    """Report what a removal waits for, and why, if it prints nothing else for some time, and
    release pods that a queue holds. `step` names what it waits for; empty: the end of the stack's
    objects. Yields a function that prints a line of the removal itself."""
    begun_mono_s = printed_mono_s = time.monotonic()

    def print_line(line: str) -> None:
        nonlocal printed_mono_s
        printed_mono_s = time.monotonic()
        say(line)

    async def report() -> None:
        while True:
            left_s = printed_mono_s + REPORT_S - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            awaited = step or await _describe_left(cluster, record)
            waited_s = time.monotonic() - begun_mono_s
            print_line(
                f"still removing after {waited_s:.0f} s" + (f": {awaited}" if awaited else "")
            )

    async with Tasks() as tasks:
        tasks.start(report(), "report what the removal waits for")
        yield print_line


async def _describe_left(cluster: Cluster, record: RunRecord) -> str:
    try:
        report = await find_left(cluster, record)
        await release_from_queue(cluster, report.left)
        return await describe_wait(cluster, report, stack=record.stack)
    except AiperfError:
        # `watched_contact` reports a cluster that does not respond.
        return ""


async def unverified(record: RunRecord, report: LeakReport, cluster: Cluster) -> Unverified:
    """Return the error for a stack whose leftovers are unknown: the missing rights to delete and to
    list, then what to do when they are restored."""
    stack, namespace = record.stack, record.namespace or ""
    types = dict.fromkeys((*USUAL_TYPES, *record.types))
    wanted = [
        Right(group, resource, verb, namespace)
        for resource, _, group in (each.partition(".") for each in types)
        for verb in ("delete", "list")
        if (resource, verb) != ("pods", "delete")
    ]
    if record.before is None and namespace:
        wanted += [
            Right("", "namespaces", verb, namespace, namespace) for verb in ("delete", "get")
        ]
    try:
        missing = await denied(cluster, wanted)
    except AiperfError:
        missing = frozenset()
    where = f" in namespace {namespace}" if namespace else ""
    lines = [f"it is unknown whether anything is left: {report.text.partition(': ')[2]}"]
    for verb in ("list", "get", "delete"):
        lacking = [right for right in wanted if right in missing and right.verb == verb]
        kinds = [str(right).removeprefix(f"{verb} ") for right in lacking]
        more = f" and {len(kinds) - 4} more" if len(kinds) > 4 else ""
        right = f"the right to {verb} {', '.join(kinds[:4])}{more} is missing{where}"
        if kinds and verb == "delete":
            lines.insert(0, f"it could not be removed: {right}")
        elif kinds:
            lines.append(right)
    until = f"; it removes itself at {record.expires}" if record.expires else ""
    lines[0] = f"stack {stack}: {lines[0]}"
    when = "the API server lists them" if report.failed else "the rights are restored"
    lines.append(f"when {when}: aiperf-svc gc {stack}{until}")
    return Unverified("\n  ".join(lines))


def are_gone(waiting: Iterable[tuple[str, str]], left: Iterable[ObjectRef]) -> bool:
    """Return whether everything that the CLI waits for is gone. `waiting` has the kind and the name
    in the program of each object, whose own name begins with it."""
    existing = [(each.kind, each.name) for each in left]
    return not any(
        kind == wanted and name.startswith(prefix)
        for wanted, prefix in waiting
        for kind, name in existing
    )


class StackRemoval:
    """Removal of one stack. `aiperf-svc gc` can repeat it while the run's record exists."""

    def __init__(self, home: StateHome, cluster: Cluster, cli: PulumiCli, say: Say) -> None:
        self._home, self._cluster, self._cli, self._say = home, cluster, cli, say
        self.left: tuple[str, ...] = ()
        self.not_checked: tuple[str, ...] = ()
        self.is_verified = False
        """Whether the leak check had a report, and Pulumi's state agrees with it."""
        self.is_unlisted = False
        """Whether the leak check could not list the types that the stack uses."""
        self.is_destroyed = False
        """Whether `pulumi destroy` succeeded."""

    async def destroy(self, record: RunRecord, interrupts: Interrupts) -> None:
        """Remove the stack. Interrupts and errors do not stop the removal; errors are printed."""
        async with Tasks() as tasks:
            tasks.start(self._report_running(interrupts), "report interrupts")
            self._say("destroying the stack")
            deleting = asyncio.create_task(self._delete_roots(record), name="begin the removal")
            try:
                async with wait_reports(self._cluster, record, self._say) as say:
                    ended = await self._run_destroy(record, say)
            finally:
                await deleting
        if ended.code:
            self._say(f"`pulumi destroy` failed: {ended.reason}")
        self.is_destroyed = not ended.code

    async def check(self, record: RunRecord) -> None:
        """Report what is left, and delete the record if nothing is left. Raises LeakError if
        something is, Unverified if the stack's types may not be listed, EnvironmentProblem if its
        roots are unknown, the cluster does not respond or Pulumi's state could not be updated."""
        stack = record.stack
        try:
            if record.own is None:
                # Another stack of this name has the same label.
                raise EnvironmentProblem(f"it is unknown which objects belong to stack {stack}")
            report = await self._find_left(record)
        except Exception as error:
            self.not_checked = (f"everything ({error})",)
            self._say(f"it is unknown whether anything is left; look with: aiperf-svc gc {stack}")
            raise
        self.is_verified = True
        self.left = tuple(map(str, report.left))
        self.not_checked = report.not_checked
        for each in report.missing:
            self._say(f"missing from the namespace since the stack was created: {each}")
        for each in report.outside:
            self._say(f"new in the cluster since the stack was created, and kept: {each}")
        for each in report.others:
            self._say(f"not touched, of another stack with the same name: {each}")
        for each in report.strays:
            self._say(f"not touched, with the stack's label but not created by this run: {each}")
        if report.left:
            found = counted(len(report.left), "object", "is")
            raise LeakError(f"{found} left of stack {stack}; to try again: aiperf-svc gc {stack}")
        if report.unverified:
            self.is_unlisted = True
            raise await unverified(record, report, self._cluster)
        self._say(f"leak check: {report.text}")
        if not self.is_destroyed:
            await refuse_namesakes(self._cluster, record, report.others)
            self.is_verified = await self.update_state(record)
        if not self.is_verified:
            raise EnvironmentProblem(
                f"the state of stack {stack} still lists objects that are gone; "
                f"`aiperf-svc gc {stack}` updates it"
            )
        self._home.forget(stack)

    async def update_state(self, record: RunRecord) -> bool:
        """Update Pulumi's state after the objects are gone, so that the next `up` works. Returns
        whether that succeeded; errors are printed."""
        step = "Pulumi updates the state"
        async with wait_reports(self._cluster, record, self._say, step=step) as say:
            ended = await self._cli.refresh(clear_pending=True)
            if not ended.code:
                ended = await self._run_destroy(record, say)
        if ended.code:
            self._say(f"the stack's state could not be updated: {ended.reason}")
        return not ended.code

    async def _find_left(self, record: RunRecord) -> LeakReport:
        """Return what is left, after one more attempt to remove it by label.

        Raises EnvironmentProblem if the cluster cannot be read.
        """
        async with wait_reports(self._cluster, record, self._say) as say:
            report = await wait_until_gone(self._cluster, record, timeout_s=FOLLOW_S)
            if not report.left:
                return report
            say(f"still there: {count(len(report.left), 'object')}; deleting by label")
            try:
                await remove_by_label(self._cluster, record)
            except AiperfError as error:
                say(str(error))
            return await wait_until_gone(self._cluster, record, timeout_s=GONE_S)

    async def _delete_roots(self, record: RunRecord) -> None:
        """Delete the stack's roots while Pulumi starts, so the pods end early. After a failure,
        Pulumi deletes them."""
        try:
            if record.own:
                await remove_roots(self._cluster, record)
        except AiperfError as error:
            self._say(f"only Pulumi deletes the stack's pods: {error}")

    async def _run_destroy(self, record: RunRecord, say: Say) -> Ended:
        for _ in range(ATTEMPTS):
            progress, stop = Progress("destroy", say), asyncio.Event()
            async with Tasks() as tasks:
                going = tasks.start(self._cli.destroy(progress.handle, stop=stop), "pulumi destroy")
                tasks.start(self._wait_until_stuck(record, progress), "watch destroy")
                if going not in await tasks.first():
                    names = ", ".join(f"{kind} {name}" for kind, name in progress.waiting)
                    say(f"Pulumi waits for objects that are gone already ({names}); restarting it")
                    stop.set()
                ended = await going
            if not stop.is_set():
                break
        return ended

    async def _wait_until_stuck(self, record: RunRecord, progress: Progress) -> None:
        """Wait until the CLI waits only for objects that are gone. A provider that starts watching
        too late never gets their events, and waits until the object's timeout."""
        found_gone = 0
        while found_gone < GONE_CHECKS:
            await asyncio.sleep(WATCH_S)
            is_gone = False
            if progress.quiet_s >= QUIET_S and progress.waiting:
                with contextlib.suppress(AiperfError):
                    left = (await find_left(self._cluster, record)).left
                    is_gone = are_gone(progress.waiting, left)
            found_gone = found_gone + 1 if is_gone else 0

    async def _report_running(self, interrupts: Interrupts) -> None:
        while True:
            await interrupts.reached(interrupts.count + 1)
            self._say("already removing the stack; this cannot be interrupted")
