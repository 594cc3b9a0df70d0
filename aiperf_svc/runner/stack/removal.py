"""The last stages of a stack's run: removes the stack, reports what is left of it, and deletes its
record."""

import asyncio

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.domain.errors import EnvironmentProblem, LeakError
from aiperf_svc.runner.signals import Interrupts
from aiperf_svc.runner.stack.state_home import RunRecord, StateHome
from aiperf_svc.runner.stack.teardown import Say, Teardown, unverified


class StackRemoval:
    """Removal of the stack of one run. `aiperf-svc gc` can do it again as long as the run's record
    stays."""

    def __init__(self, home: StateHome, cluster: Cluster, cli: PulumiCli, say: Say) -> None:
        self._home, self._cluster, self._cli, self._say = home, cluster, cli, say
        self.left: tuple[str, ...] = ()
        self.not_checked: tuple[str, ...] = ()
        self.is_verified = False
        """Whether the leak check had a report, and Pulumi's state agrees with it."""
        self.is_unlisted = False
        """Whether the leak check could not list what the stack uses."""
        self._is_destroyed = False
        """Whether `pulumi destroy` succeeded."""

    async def destroy(self, record: RunRecord, interrupts: Interrupts) -> None:
        """Remove the stack, however often the user interrupts it."""
        notices = asyncio.create_task(self._report_running(interrupts), name="report interrupts")
        try:
            self._say("destroying the stack")
            self._is_destroyed = await self._teardown(record).destroy()
        finally:
            notices.cancel()

    async def check(self, record: RunRecord) -> None:
        """Report what is left, and delete the record if nothing is. Raises LeakError if anything
        is, Unverified if the stack's types may not be listed, EnvironmentProblem if the cluster
        does not respond or Pulumi's state could not be updated."""
        stack, teardown = record.stack, self._teardown(record)
        try:
            report = await teardown.check()
        except Exception as error:
            self.not_checked = (f"everything ({error})",)
            self._say(f"it is unknown whether anything is left; look with: aiperf-svc gc {stack}")
            raise
        self.is_verified = True
        self.left = tuple(map(str, report.left))
        self.not_checked = report.not_checked
        for each in report.missing:
            self._say(f"missing from the namespace since the stack was created: {each}")
        for each in report.others:
            self._say(f"not touched, of another stack with the same name: {each}")
        for each in report.strays:
            self._say(f"not touched, with the stack's label but not created by this run: {each}")
        if report.left:
            raise LeakError(f"{len(report.left)} objects of stack {stack} are left")
        if report.unverified:
            self.is_unlisted = True
            raise await unverified(record, report, self._cluster)
        self._say(f"leak check: {report.in_words}")
        if not self._is_destroyed and not await teardown.update_state():
            self.is_verified = False
            raise EnvironmentProblem(
                f"the state of stack {stack} still lists objects that are gone; "
                f"`aiperf-svc gc {stack}` updates it"
            )
        self._home.forget(stack)

    async def _report_running(self, interrupts: Interrupts) -> None:
        while True:
            await interrupts.reached(interrupts.count + 1)
            self._say("already removing the stack; this cannot be interrupted")

    def _teardown(self, record: RunRecord) -> Teardown:
        return Teardown(cluster=self._cluster, cli=self._cli, record=record, say=self._say)
