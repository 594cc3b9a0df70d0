"""`status`, `results` and `cancel`: the run of a stack that is up."""

import argparse
import os
import sys
from contextlib import AbstractAsyncContextManager

import msgspec

from aiperf_svc.adapters.results_api.status import Status
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.terminal.status_text import final_line, plain_line
from aiperf_svc.cli.stacks import NamedStack, in_each, stacks_of
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.runner import ending, printing, signals
from aiperf_svc.runner.joining import finish
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.outcome import RunEnd, RunOutcome
from aiperf_svc.runner.parts import JointRun
from aiperf_svc.runner.stack.attached import Attached, attach, fetch
from aiperf_svc.runner.start_gate import measure_offset

POLL_S = 5.0


def status(args: argparse.Namespace) -> int:
    """Fetch the status and print it."""

    def show(stack: NamedStack, status: Status) -> None:
        if args.json:
            named = {"name": stack.name} if stack.name else {}
            # The dataset is already JSON, which only an encoder accepts.
            content = {**named, **msgspec.json.decode(msgspec.json.encode(status))}
            print(msgspec.json.encode(content).decode(), flush=True)
            return
        line = final_line(status) if status.is_settled else plain_line(status)
        print(one_line(stack.line(line)), flush=True)
        if status.is_settled and status.results_ready and not stack.name:
            print(f"results: aiperf-svc results {args.stack}", flush=True)

    async def show_status(stack: NamedStack) -> bool:
        async with _attached(stack) as attached:
            status = await attached.client.status()
            show(stack, status)
            while args.wait and not status.is_settled:
                before = status.state
                status = await attached.client.status(after=status.number, timeout_s=POLL_S)
                if status.state != before or status.is_settled:
                    show(stack, status)
            return status.state == RunState.FAILED

    failed, code = signals.run(in_each(stacks_of(args.stack, args), show_status))
    return int(ExitCode.BENCHMARK_FAILED if True in failed else code)


def results(args: argparse.Namespace) -> int:
    """Fetch and print."""
    stacks = stacks_of(args.stack, args)
    if stacks[0].kind == "shapes":
        commands = "; ".join(f"aiperf-svc results {stack.stack}" for stack in stacks)
        raise ConfigError(f"{args.stack} has one stack for each shape: {commands}")
    if len(stacks) > 1:
        return _results_of_all(stacks, args)

    async def fetched(stack: NamedStack) -> RunOutcome:
        async with _attached(stack) as attached:
            return await fetch(attached, parent=args.artifact_dir)

    outcome = signals.run(fetched(stacks[0]))
    if outcome.artifacts is not None:
        ending.refresh_manifest(outcome.artifacts)
    printing.print_outcome(outcome, RunOptions(json=args.json))
    return int(outcome.exit_code)


def _results_of_all(stacks: list[NamedStack], args: argparse.Namespace) -> int:
    folder = folders.make_dated_folder(args.artifact_dir, args.stack)

    async def fetched(stack: NamedStack) -> JointRun:
        async with _attached(stack) as attached:
            outcome = await fetch(attached, parent=folder, name=stack.name)
            offset = await measure_offset(attached.client)
        return JointRun(name=stack.name, where=stack.where, outcome=outcome, offsets={1: offset})

    found, _ = signals.run(in_each(stacks, fetched))
    runs = [
        JointRun(name=stack.name, where=stack.where, outcome=RunEnd(error=each).outcome())
        if isinstance(each, AiperfError)
        else each
        for stack, each in zip(stacks, found, strict=True)
    ]
    kind = stacks[0].kind
    assert kind != "shapes"
    return int(finish(kind, args.stack, folder, runs, RunOptions(json=args.json)))


def cancel(args: argparse.Namespace) -> int:
    """Stop the run."""

    async def stop(stack: NamedStack) -> None:
        async with _attached(stack) as attached:
            status = await attached.client.status()
            if RunState(status.state).is_final:
                text = f"the run has already ended ({status.state})"
            else:
                await attached.client.cancel("cancelled by `aiperf-svc cancel`")
                text = "the run is stopping; results so far are kept"
        print(f"stack {stack.stack}: {text}", file=sys.stderr)

    _, code = signals.run(in_each(stacks_of(args.stack, args), stop))
    return int(code)


def _attached(stack: NamedStack) -> AbstractAsyncContextManager[Attached]:
    """Connect to the results API of a stack."""
    return attach(
        stack.stack, environ=os.environ, kubeconfig=stack.kubeconfig, context=stack.context
    )
