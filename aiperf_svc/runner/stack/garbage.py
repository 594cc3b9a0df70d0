"""Finds and removes the stacks that earlier runs left behind: by the records of this machine, the
label in the cluster, and Pulumi's state."""

import asyncio
import contextlib
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, connect
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.ownership import (
    LeaseKeeper,
    StackInUse,
    claim,
    take_from_process,
    this_process,
    wait_for_lease,
)
from aiperf_svc.adapters.cluster.teardown.event_undo import changed_objects, undo_recorded
from aiperf_svc.adapters.cluster.teardown.inventory import namespaces_of
from aiperf_svc.adapters.cluster.teardown.leaks import (
    LeakReport,
    find_left,
    find_roots,
    wait_until_gone,
)
from aiperf_svc.adapters.cluster.teardown.removal import FoundStack, list_stacks, remove_by_label
from aiperf_svc.adapters.cluster.watching.contact import watched_contact
from aiperf_svc.adapters.exports.experiment_file import is_experiment
from aiperf_svc.adapters.pulumi import deployed, project
from aiperf_svc.adapters.pulumi import state as file_state
from aiperf_svc.adapters.pulumi.cli import PulumiCli, locks_in
from aiperf_svc.adapters.pulumi.namesakes import own_in_state, refuse_namesakes, refuse_strangers_of
from aiperf_svc.adapters.pulumi.project import check_locks
from aiperf_svc.adapters.pulumi.state_home import RunRecord, StateHome
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.storage.shape_trials import experiment_of
from aiperf_svc.adapters.terminal import output
from aiperf_svc.core.cluster.lease import Holder
from aiperf_svc.domain.errors import AiperfError, ConfigError, EnvironmentProblem, Unverified
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.runner.stack import records
from aiperf_svc.runner.stack.request import CONTEXT, find_context, open_project
from aiperf_svc.runner.stack.teardown import GONE_S, StackRemoval, unverified, wait_reports

STRAY = "which has the stack's label and was not created by a run of it"
ENDED_S, POLL_S = 300.0, 1.0
"""Longest wait for a runner whose stack was taken over to end its run, and time between two
checks."""


@dataclass(frozen=True, kw_only=True)
class GarbageRequest:
    """Stacks to remove, and how."""

    stacks: tuple[str, ...]
    """Names of stacks. Empty: stacks with a record on this machine, and stacks past their
    deadline."""
    environ: Mapping[str, str]
    kubeconfig: str | None = None
    context: str | None = None
    identity: str = ""
    """Identity that the cluster of this context must have; empty: any."""
    namespace: str | None = None
    """Namespace to search if not all namespaces may be listed."""
    take_over: bool = False
    """True to remove stacks that others use."""
    force: bool = False
    """True to remove a stack without its state, or despite another machine's lock."""
    yes: bool = False

    @cached_property
    def me(self) -> Holder:
        """This process, as Leases name it."""
        return this_process(self.environ)


@dataclass
class Collected:
    """Outcome for each stack."""

    removed: dict[str, str] = field(default_factory=dict)
    """Removed stacks, each with the result of the leak check."""
    left: dict[str, list[str]] = field(default_factory=dict)
    not_checked: dict[str, list[str]] = field(default_factory=dict)
    unverified: dict[str, str] = field(default_factory=dict)
    """Stacks that could not be listed, so it is unknown whether they are gone."""
    refused: dict[str, str] = field(default_factory=dict)
    not_reached: dict[str, str] = field(default_factory=dict)
    """Stacks whose cluster could not be searched, so it is unknown whether they exist; and the
    current context if its cluster could not be searched."""
    not_touched: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Names found neither in the cluster nor in the state nor in a record of this machine."""
    declined: bool = False
    folders: int = 0
    """Number of temporary folders of killed runs that were removed from this machine. The
    Kubernetes provider leaves the cluster's key in them."""
    clusters: list[str] = field(default_factory=list)
    """Identities of the clusters that were searched."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code for the outcome; the first that applies."""
        if self.left:
            return ExitCode.LEAKED
        if self.unverified:
            return ExitCode.UNVERIFIED
        if self.refused or self.not_reached:
            return ExitCode.ERROR
        return ExitCode.INTERRUPTED if self.declined else ExitCode.OK


async def collect_everywhere(request: GarbageRequest) -> Collected:
    """Remove what is left in the current context's cluster, and in each other cluster in a record
    of this machine. A cluster that cannot be reached is reported, and the others are searched.
    Raises EnvironmentProblem if the current context's cluster cannot be reached and no other is
    recorded."""
    home, done = StateHome(request.environ), Collected()
    try:
        await collect_garbage(request, done)
    except EnvironmentProblem as error:
        if not home.records():
            raise
        done.not_reached["current context"] = str(error)
    unreached: dict[str, str] = {}
    for record in home.records():
        if record.cluster not in (*unreached, *done.clusters):
            other = replace(
                request,
                kubeconfig=record.kubeconfig,
                context=record.context,
                identity=record.cluster,
            )
            try:
                await collect_garbage(other, done)
            except EnvironmentProblem as error:
                unreached[record.cluster] = str(error)
        if record.cluster in unreached:
            known = [home.record_file(record.stack)]
            known += [home.ephemeral(record.stack)] if record.is_ephemeral else []
            remedy = shlex.join(["rm", "-r", *map(str, known)])
            gone = f"if that cluster no longer exists, delete its record: {remedy}"
            done.not_reached[record.stack] = f"{unreached[record.cluster]}; {gone}"
    return done


async def collect_garbage(request: GarbageRequest, done: Collected) -> None:
    """Remove what is left of stacks in one cluster, and add the outcome to `done`. Raises
    EnvironmentProblem if the cluster cannot be reached, and ConfigError for invalid names or if
    there is no terminal to confirm."""
    home = StateHome(request.environ)
    done.folders += folders.remove_stale()
    for name in request.stacks:
        check_stack_name(name)
    kubeconfig, context = request.kubeconfig, request.context or request.environ.get(CONTEXT)
    if len(request.stacks) == 1:
        kubeconfig, context = find_context(
            request.stacks[0], request.environ, kubeconfig=kubeconfig, context=request.context
        )
    async with connect(kubeconfig=kubeconfig, context=context) as cluster:
        if request.identity and cluster.identity != request.identity:
            raise EnvironmentProblem(
                f"it was created in another cluster (kube-system {request.identity}) than that of "
                f"context {cluster.context}; use --context or --kubeconfig"
            )
        done.clusters.append(cluster.identity)
        stacks = await list_stacks(cluster, namespace=request.namespace)
        found = {each.stack: each for each in stacks}
        chosen = request.stacks or _leftovers(home, cluster, found)
        done.not_touched += [_describe(each) for name, each in found.items() if name not in chosen]
        done.not_touched += [
            f"{stack}: no object of it was found, and an event is not undone; gc {stack}: "
            f"{undo.text}"
            for stack, undo in await changed_objects(cluster)
            if stack not in found and stack not in chosen
        ]
        if not chosen:
            return
        for name in chosen:
            nothing = f"{name}: the objects in its state; no object in the cluster has its label"
            output.say(f"to remove: {_describe(found[name]) if name in found else nothing}")
            if folder := _folder_to_resume(home, name):
                output.say(f"  --resume {folder} continues its experiment instead")
        if not request.yes and not output.can_ask():
            raise ConfigError(
                "cannot ask for confirmation without a terminal; --yes removes without a question"
            )
        if not request.yes and not await output.ask("Remove this?"):
            done.declined = True
            return
        for name in chosen:
            try:
                await home.wait_for_killed(name, output.say)
                may_end = request.take_over and name in request.stacks
                if may_end and await _end_runner(request, home, cluster, name):
                    done.removed[name] = "its own run has removed it"
                    continue
                with home.hold(name) as held:
                    removal = _Removal(request, home, cluster, name, found.get(name), held=held)
                    async with watched_contact(cluster, note=output.say):
                        report = await removal.run()
            except AiperfError as error:
                if isinstance(error, Unverified):
                    done.unverified[name] = str(error)
                elif isinstance(error, StackInUse) and name not in request.stacks:
                    # A stack in use is not a leftover.
                    done.not_touched.append(f"{name}: {error}")
                else:
                    done.refused[name] = str(error)
                continue
            if not removal.was_known:
                done.unknown.append(name)
                continue
            if report.not_checked:
                done.not_checked[name] = list(report.not_checked)
            if report.others:
                names = ", ".join(map(str, report.others))
                done.not_touched.append(f"{name}: {names}, another stack with the same name")
            done.not_touched += [f"{name}: {each}, {STRAY}" for each in report.strays]
            if report.left:
                done.left[name] = [str(each) for each in report.left]
            else:
                done.removed[name] = report.text


def _folder_to_resume(home: StateHome, stack: str) -> str:
    """Return the folder of the experiment that a killed runner has left running; empty if there is
    none."""
    record = home.load(stack)
    if record is None or not record.artifacts:
        return ""
    folder, _ = experiment_of(Path(record.artifacts))
    return str(folder) if is_experiment(folder) else ""


def _leftovers(
    home: StateHome, cluster: Cluster, found: Mapping[str, FoundStack]
) -> tuple[str, ...]:
    """Return the stacks that are certainly not in use. Runs of another machine are left to that
    machine and to their deadline."""
    ours = [record.stack for record in home.records() if record.cluster == cluster.identity]
    # A project without a record belongs to a runner that ended before it created anything.
    never_created = [name for name in home.ephemeral_stacks() if home.load(name) is None]
    overdue = [name for name, each in found.items() if each.is_overdue]
    return tuple(dict.fromkeys((*ours, *never_created, *overdue)))


async def _end_runner(
    request: GarbageRequest, home: StateHome, cluster: Cluster, stack: str
) -> bool:
    """Take the stack over from the runner of this machine that uses it, and wait until that runner
    has ended. Returns whether the runner removed the stack. Does nothing if no runner uses it."""
    holder, record = home.holder(stack), home.load(stack)
    if not holder.isdecimal() or record is None:
        return False
    roots = await find_roots(cluster, stack=stack, or_namespace=record.namespace)
    namespaces = namespaces_of(roots)
    if not await take_from_process(
        cluster, stack, namespaces, pid=int(holder), me=request.me, say=output.say
    ):
        return False
    async with wait_reports(cluster, record, output.say):
        give_up_mono_s, is_there = time.monotonic() + ENDED_S, True
        while is_there and time.monotonic() < give_up_mono_s:
            await asyncio.sleep(POLL_S)
            is_there = home.holder(stack) == holder
    # A runner deletes its record when nothing is left.
    return not home.holder(stack) and home.load(stack) is None


class _Removal:
    """Removal of one stack. The caller holds its lock on this machine."""

    def __init__(
        self,
        request: GarbageRequest,
        home: StateHome,
        cluster: Cluster,
        stack: str,
        found: FoundStack | None,
        *,
        held: int,
    ) -> None:
        self._request, self._home, self._cluster = request, home, cluster
        self._stack, self._found, self._held = stack, found, held
        is_recorded = home.load(stack) is not None or stack in home.ephemeral_stacks()
        self.was_known = found is not None or is_recorded
        """True if the stack was found or recorded beforehand."""
        self._is_proved = False
        """True if a record or a state identifies the objects to remove, not only their label."""
        self._is_state_lost = False
        """True if the state's folder does not exist any more."""
        self._has_state = False
        """True if Pulumi's state has the stack."""
        self._is_taken = False
        """True if the stack was taken over from a process, which is now ending its run."""

    async def run(self) -> LeakReport:
        """Remove the stack and return what is left of it. Raises EnvironmentProblem if it may not
        be removed, Unverified if it may not be listed."""
        record = self._record()
        if record.cluster != self._cluster.identity:
            raise EnvironmentProblem(
                f"stack {self._stack} was created in another cluster (kube-system "
                f"{record.cluster}) than this context's ({self._cluster.identity}); use --context "
                "or --kubeconfig"
            )
        first = await find_left(self._cluster, record, timeout_s=GONE_S)
        if first.unverified and not first.left:
            # An update of the state without the right to read would forget existing objects.
            raise await unverified(record, first, self._cluster)
        with contextlib.ExitStack() as stack:
            cli = await self._open_state(stack, record)
            record = await self._with_namesakes(await self._with_own_roots(record, cli))
            async with contextlib.AsyncExitStack() as held:
                # Others may use the stack, so this precedes any lock or change of its state.
                keepers = await self._claim(record, first.left, held)
                if cli is not None and self._has_state and not await self._refresh(cli, record):
                    cli = None
                for each in keepers:
                    if each.loss is not None:
                        raise StackInUse(str(each.loss))
                space = record.namespace if record.before is not None else self._request.namespace
                wanted = msgspec.structs.replace(record, namespace=space)
                try:
                    await remove_by_label(self._cluster, wanted)
                except AiperfError as error:
                    # The report lists what could not be deleted.
                    output.say(str(error))
            async with wait_reports(self._cluster, record, output.say):
                report = await wait_until_gone(self._cluster, record, timeout_s=GONE_S)
            if report.unverified and not report.left:
                raise await unverified(record, report, self._cluster)
            if report.left or (cli is None and not self._is_state_lost):
                # The record stays for a later removal with the state.
                return report
            if cli is not None and await cli.export():
                removal = StackRemoval(self._home, self._cluster, cli, output.say)
                if not await removal.update_state(record):
                    raise EnvironmentProblem(
                        f"{report.text} in the cluster, but the state could not be updated; "
                        f"call `aiperf-svc gc {self._stack}` again"
                    )
        self._home.forget(self._stack)
        if record.is_ephemeral:
            self._home.forget_ephemeral(self._stack)
        return report

    def _record(self) -> RunRecord:
        known = self._home.load(self._stack)
        if known is not None:
            return known
        names = self._found.namespaces if self._found else ()
        return RunRecord(
            stack=self._stack,
            cluster=self._cluster.identity,
            kubeconfig=self._request.kubeconfig,
            context=self._cluster.context,
            backend="",
            is_ephemeral=self._stack in self._home.ephemeral_stacks(),
            namespace=names[0] if names else self._request.namespace,
        )

    async def _open_state(self, stack: contextlib.ExitStack, record: RunRecord) -> PulumiCli | None:
        """Return the CLI with the stack's state; None if the state is not available and the user
        forces the removal. Raises EnvironmentProblem."""
        folder = file_state.folder_of(record.backend)
        if folder is not None and record.own and not (folder / ".pulumi").is_dir():
            # No command works without the state, and the record identifies the run's objects.
            self._is_state_lost = True
            output.say(
                f"stack {self._stack}: its state in {folder} is gone; using its record instead"
            )
            return None
        environ = dict(self._request.environ)
        if record.backend and not record.is_ephemeral:
            environ[project.BACKEND] = record.backend
        opened = open_project(
            self._stack,
            None,
            environ,
            cluster=self._cluster,
            is_ephemeral=record.is_ephemeral,
            held=self._held,
        )
        try:
            cli = stack.enter_context(opened)
            state = await cli.export()
        except AiperfError as error:
            self._continue_without_state(str(error))
            return None
        if state:
            self.was_known = self._has_state = True
            deployed.check_cluster(state, stack=self._stack, identity=self._cluster.identity)
            # A refresh would adopt what others have created.
            await refuse_strangers_of(self._cluster, self._stack, state, record.own or ())
        return cli

    async def _refresh(self, cli: PulumiCli, record: RunRecord) -> bool:
        """Update the state from the cluster, and remove the lock of a process that has ended.
        Returns False if that failed and the user forces the removal. Raises EnvironmentProblem."""
        step = "`pulumi refresh` compares the state with the cluster"
        give_up_mono_s = time.monotonic() + ENDED_S
        async with wait_reports(self._cluster, record, output.say, step=step):
            while True:
                ended = await cli.refresh()
                locks = locks_in(f"{ended.errors}\n{ended.out}") if ended.code else ()
                if not locks or not self._is_taken or time.monotonic() > give_up_mono_s:
                    break
                await asyncio.sleep(POLL_S)
        if locks:
            check_locks(locks, stack=self._stack, force=self._request.force)
            output.say(f"stack {self._stack}: removing the lock of {locks[0]}")
            await cli.unlock()
        elif ended.code:
            self._continue_without_state(f"`pulumi refresh` failed: {ended.reason}")
            return False
        return True

    async def _claim(
        self,
        record: RunRecord,
        left: Iterable[ObjectRef],
        held: contextlib.AsyncExitStack,
    ) -> Sequence[LeaseKeeper]:
        """Hold the Leases of the objects to remove, which `left` lists, until `held` closes, so
        that no other process begins to use them. Undo the events of a killed runner. Raises
        StackInUse if another process uses the objects, or if that may not be read."""
        roots = await find_roots(self._cluster, stack=self._stack, or_namespace=record.namespace)
        ours = [each for each in roots if record.own is None or each.uid in record.own]
        uids, spaces = {each.uid for each in ours}, namespaces_of(ours)
        is_overdue = self._found is not None and uids <= {*self._found.overdue}
        others: list[str] = []
        if record.own is None:
            # All objects of runs are removed, even where the user may not list the roots.
            chosen = self._request.namespace
            found = (each.namespace for each in left if chosen in (None, each.namespace))
            others = [each for each in dict.fromkeys(found) if each and each not in spaces]
        keepers = list[LeaseKeeper]()
        if not self._is_proved and not is_overdue:
            for root in ours:
                with contextlib.suppress(Refused):  # `claim` reports that it may not be read.
                    await wait_for_lease(self._cluster, self._stack, root)
        for namespace in (*spaces, *others):
            self._is_taken |= await claim(
                self._cluster,
                self._stack,
                namespace,
                me=self._request.me,
                is_own=self._is_proved or (is_overdue and namespace in spaces),
                take_over=self._request.take_over,
                say=output.say,
            )
            keeper = LeaseKeeper(self._cluster, self._stack, self._request.me, output.say)
            keeper.begin(namespace)
            held.push_async_callback(keeper.close, is_kept=False)
            keepers.append(keeper)
        await undo_recorded(self._cluster, ours, output.say)
        if not roots:
            # The stack of a killed runner was removed at the end of its time to live.
            for _, undo in await changed_objects(self._cluster, self._stack):
                if await undo.carry_out(self._cluster):
                    self.was_known = True
                    output.say(f"an event was not undone: {undo.text}")
        return keepers

    def _continue_without_state(self, why: str) -> None:
        if not self._request.force:
            raise EnvironmentProblem(
                f"it is unknown whether stack {self._stack} is in use: {why}\nWith --force its "
                "objects are removed anyway, and its state is left as it is"
            )
        output.say(f"stack {self._stack}: removed without its state: {why}")

    async def _with_own_roots(self, record: RunRecord, cli: PulumiCli | None) -> RunRecord:
        """Return the record with the roots to remove. These are the roots that a run of this
        machine created, or all roots of another named stack, or else those past their deadline."""
        self._is_proved = record.is_ephemeral  # Its name is unique.
        if self._home.load(self._stack) is not None and not record.is_ephemeral:
            self._is_proved = cli is not None or bool(record.own or record.namespace_uid)
            return await records.find_own(record, self._cluster, cli)
        own: tuple[str, ...] | None = None
        state = await cli.export() if cli is not None else {}
        existing = await find_roots(self._cluster, stack=self._stack, or_namespace=record.namespace)
        uids = await own_in_state(self._cluster, state, existing, stack=self._stack)
        known = tuple(each.uid for each in existing if each.uid in uids)
        if known and not record.is_ephemeral:
            self._is_proved = True
            # The state distinguishes its own stack from another one of the same name.
            own = known
        elif self._stack not in self._request.stacks and self._found and not record.is_ephemeral:
            own = self._found.overdue
        record = msgspec.structs.replace(record, own=own)
        found = await records.find_own(record, self._cluster, None)
        return msgspec.structs.replace(found, own=own)

    async def _with_namesakes(self, record: RunRecord) -> RunRecord:
        """Return the record with the roots of a stack that has replaced this one. Raises StackInUse
        unless the user takes over that stack."""
        own = record.own
        if own is None or not self._has_state:
            return record
        roots = await find_roots(self._cluster, stack=self._stack, or_namespace=record.namespace)
        others = [each for each in roots if each.uid not in own]
        if not (self._request.take_over and self._stack in self._request.stacks):
            await refuse_namesakes(self._cluster, record, others)
            return record
        uids = [e.uid for e in others if record.namespace in namespaces_of([e])]
        self._is_proved &= not uids
        return msgspec.structs.replace(record, own=(*own, *uids))


def _describe(found: FoundStack) -> str:
    namespaces = ", ".join(found.namespaces) or "no namespace"
    end = f", its time to live ends at {found.expires:%Y-%m-%d %H:%M:%SZ}" if found.expires else ""
    return f"{found.stack}: {count(found.objects, 'object')} in {namespaces}{end}"
