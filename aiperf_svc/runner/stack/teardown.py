"""Removes a stack: its pods at once, the rest by Pulumi, and by label what Pulumi does not know.

Whether an object is gone is read from the cluster. Pulumi's provider waits for events and can miss
one, so each of its attempts is watched.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.leaks import LeakReport, wait_until_gone
from aiperf_svc.adapters.cluster.teardown.removal import remove_by_label
from aiperf_svc.adapters.cluster.teardown.root_removal import remove_roots
from aiperf_svc.adapters.pulumi.cli import Ended, PulumiCli
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.runner.stack.progress import Progress
from aiperf_svc.runner.stack.state_home import RunRecord

FOLLOW_S = 20.0
"""Time for the cluster's own garbage collection to follow a deletion."""
GONE_S = 60.0
"""Time for objects that were deleted by label: pods may use their grace period."""
ATTEMPTS = 3
QUIET_S, WATCH_S = 4.0, 1.0
"""Time without any step of the CLI before the cluster is checked, and time between two checks."""
GONE_CHECKS = 2
"""Consecutive checks in which everything that the CLI waits for is gone; its event may still be on
its way."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Teardown:
    """Removal of one stack."""

    cluster: Cluster
    cli: PulumiCli
    record: RunRecord
    say: Say

    async def destroy(self) -> bool:
        """Remove the stack and return whether Pulumi reports success. Errors are printed and stop
        nothing."""
        begun = asyncio.create_task(self._begin(), name="begin the removal")
        try:
            ended = await self._destroyed()
        finally:
            await begun
        if ended.code:
            self.say(f"`pulumi destroy` failed: {ended.said}")
        return not ended.code

    async def check(self) -> LeakReport:
        """Return what is left. If anything is, try once more to remove it by label.

        Raises EnvironmentProblem if the cluster cannot be read.
        """
        report = await self._look(FOLLOW_S)
        if not report.left:
            return report
        self.say(f"still there: {len(report.left)} objects; deleting by label")
        await self._delete()
        return await self._look(GONE_S)

    async def update_state(self) -> bool:
        """Update Pulumi's state after the objects are gone, so that the next `up` works. Returns
        whether that succeeded; errors are printed."""
        ended = await self.cli.refresh(clear_pending=True)
        if not ended.code:
            ended = await self._destroyed()
        if ended.code:
            self.say(f"the stack's state could not be brought up to date: {ended.said}")
        return not ended.code

    async def _begin(self) -> None:
        """Delete the stack's roots while Pulumi starts, so that the pods end early. Failures are
        left to Pulumi."""
        record = self.record
        if not record.own:
            return
        try:
            await remove_roots(
                self.cluster, stack=record.stack, namespace=record.namespace, own=record.own
            )
        except AiperfError as error:
            self.say(f"the stack's pods end later: {error}")

    async def _destroyed(self) -> Ended:
        for _ in range(ATTEMPTS):
            progress, stop = Progress("destroy", self.say), asyncio.Event()
            going = asyncio.create_task(
                self.cli.destroy(progress.handle, stop=stop), name="pulumi destroy"
            )
            stuck = asyncio.create_task(self._wait_until_stuck(progress), name="watch destroy")
            await asyncio.wait((going, stuck), return_when=asyncio.FIRST_COMPLETED)
            if not going.done():
                names = ", ".join(f"{kind} {name}" for kind, name in progress.waiting)
                self.say(f"Pulumi waits for what is gone already ({names}); it begins again")
                stop.set()
            ended = await going
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)
            if not stop.is_set():
                break
        return ended

    async def _wait_until_stuck(self, progress: Progress) -> None:
        """Wait until the CLI waits only for objects that are gone. A provider that starts watching
        too late never gets their events, and waits until the object's timeout."""
        found_gone = 0
        while found_gone < GONE_CHECKS:
            await asyncio.sleep(WATCH_S)
            if progress.quiet_s < QUIET_S or not progress.waiting:
                found_gone = 0
                continue
            try:
                left = (await self._look(0.0)).left
            except AiperfError:
                found_gone = 0
                continue
            found_gone = found_gone + 1 if are_gone(progress.waiting, left) else 0

    async def _delete(self) -> None:
        record = self.record
        try:
            await remove_by_label(
                self.cluster,
                stack=record.stack,
                namespace=record.namespace,
                own=record.own,
                before=record.before,
            )
        except AiperfError as error:
            self.say(str(error))

    async def _look(self, timeout_s: float) -> LeakReport:
        return await look_for(self.record, self.cluster, timeout_s=timeout_s)


async def look_for(record: RunRecord, cluster: Cluster, *, timeout_s: float) -> LeakReport:
    """Wait until nothing is left of the recorded stack, and return the last report. Raises
    EnvironmentProblem if the cluster cannot be read."""
    return await wait_until_gone(
        cluster,
        stack=record.stack,
        namespace=record.namespace or "",
        namespace_uid=record.namespace_uid,
        before=record.before,
        own=record.own,
        timeout_s=timeout_s,
    )


def are_gone(waiting: Iterable[tuple[str, str]], left: Iterable[ObjectRef]) -> bool:
    """Return whether everything that the CLI waits for is gone, by kind and by name in the program,
    which an object's own name begins with."""
    there = [(each.kind, each.name) for each in left]
    return not any(
        kind == wanted and name.startswith(prefix)
        for wanted, prefix in waiting
        for kind, name in there
    )
