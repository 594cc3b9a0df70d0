"""Runs one or several services in this process: the entry point of every process and pod."""

import asyncio
import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

import uvloop

from aiperf_svc.adapters.host.child_processes import die_with_parent
from aiperf_svc.adapters.host.garbage_collection import resume_collection
from aiperf_svc.adapters.host.logs import set_up_logs
from aiperf_svc.adapters.host.machine import usable_cores
from aiperf_svc.adapters.host.memory import give_back_memory
from aiperf_svc.adapters.host.scheduling import PromptWhileIdle, lower_priority, raise_priority
from aiperf_svc.adapters.messaging.bus import LINGER_MS
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService
from aiperf_svc.services.context import RunContext, make_bus, read_context
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.workload import WorkerPriority

STOP_S = 4.0
"""Timeout of a regular shutdown after SIGTERM. It is shorter than the launcher's kill timeout, so
the log shows which service was stuck, and where."""

ADAPT_S = 0.05
"""Interval between checks of a closed-loop worker's CPU use."""

log = logging.getLogger(__name__)


def run_services(names: Sequence[Service]) -> int:
    """Run the services until the run has ended, or in a pod until SIGTERM. Returns an exit code."""
    die_with_parent()
    # A worker's pauses must be short, and the first collection of all new objects would be long.
    resume_collection()
    try:
        context = read_context()
        _share_cores(context, names)
        set_up_logs(context.run_id, names, instance=context.instance)
        uvloop.run(_run(context, names))
    except AiperfError as error:
        log.error("%s", error)
        return int(error.exit_code)
    return int(ExitCode.OK)


def _share_cores(context: RunContext, names: Sequence[Service]) -> None:
    """Set the priority of this process: workers must send and read on time, while record processors
    handle data that is already measured.

    In open loop a worker has to keep a schedule, so it takes precedence over all other processes if
    that leaves them a core. In closed loop it does so while it uses little CPU (`_stay_prompt`). If
    there are more workers than cores, a processor with a lower priority would hardly run at all.
    """
    workers, cores = context.topology.workers, usable_cores()
    priority = workload_of(context.config).worker_priority(context.config)
    if priority is WorkerPriority.USUAL:
        return
    if set(names) == {Service.WORKER}:
        raise_priority(before_all=priority is WorkerPriority.BEFORE_ALL and workers < cores)
    elif set(names) == {Service.RECORD_PROCESSOR} and workers <= cores:
        lower_priority()


async def _stay_prompt() -> None:
    """Adjust the priority of a closed-loop worker to its CPU use."""
    prompt = PromptWhileIdle(cpu_ns=time.thread_time_ns(), now_mono_ns=time.monotonic_ns())
    while True:
        await asyncio.sleep(ADAPT_S)
        prompt.adapt(cpu_ns=time.thread_time_ns(), now_mono_ns=time.monotonic_ns())


def _may_stay_prompt(context: RunContext, names: Sequence[Service]) -> bool:
    priority = workload_of(context.config).worker_priority(context.config)
    return (
        priority is WorkerPriority.WHILE_IDLE
        and set(names) == {Service.WORKER}
        and context.topology.workers < usable_cores()
    )


async def _run(context: RunContext, names: Sequence[Service]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(_number: int, _frame: FrameType | None) -> None:
        _end_within(STOP_S)
        if not loop.is_closed():
            loop.call_soon_threadsafe(stopping.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not a handler of the event loop, because a stuck service would keep it from running.
        signal.signal(number, stop)
    stop_requested = asyncio.create_task(stopping.wait(), name="stop requested")
    try:
        if context.config.experiment is None:
            await _run_trial(context, names, until=(stop_requested,))
        else:
            await _run_trials(context, names, stop_requested)
    finally:
        stop_requested.cancel()


async def _run_trial(
    context: RunContext,
    names: Sequence[Service],
    *,
    until: Iterable[asyncio.Task[Any]],
    linger_ms: int = LINGER_MS,
) -> None:
    """Run the services of one run until they have nothing left to do, or one of the tasks ends."""
    bus = make_bus(context)
    await bus.start()
    is_on_ranks = workload_of(context.config).runs_on_ranks
    services = [service_class(name, is_on_ranks=is_on_ranks)(context, bus) for name in names]
    running = [asyncio.create_task(s.run(), name=s.id) for s in services]
    if _may_stay_prompt(context, names):
        running.append(asyncio.create_task(_stay_prompt(), name="priority"))
    ended = asyncio.create_task(_all_finished(services), name="finished")
    enough = [*running, *until, *([ended] if context.ends_with_run else [])]
    try:
        await asyncio.wait(enough, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*running, ended):
            task.cancel()
        results = await asyncio.gather(*running, return_exceptions=True)
        for service in services:
            await service.close()
        await bus.close(linger_ms=linger_ms)
    for result in results:
        # A Rust panic in a library is not an Exception.
        if isinstance(result, BaseExceptionGroup):
            raise result.exceptions[0]
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


async def _run_trials(
    context: RunContext, names: Sequence[Service], stop_requested: asyncio.Task[Any]
) -> None:
    """Run the services of one trial after another until the experiment is over."""
    from aiperf_svc.services.trials import context_of, following_trials

    async with following_trials(context, names) as trials:
        trial = None
        while True:
            following = asyncio.create_task(trials.follower.after(trial), name="next trial")
            ends = (following, stop_requested, *trials.tasks)
            if trial is None:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            else:
                _share_cores(own := context_of(context, trials.shared, trial), names)
                set_up_logs(own.run_id, names, instance=own.instance)
                # Unsent messages are not needed: the controller starts the next trial only after
                # all services have finished.
                await _run_trial(own, names, until=ends, linger_ms=0)
            for task in trials.tasks:
                if task.done():
                    task.result()
            if stop_requested.done():
                following.cancel()
                return
            trial = await following
            if trials.results is not None:
                give_back_memory()
                await trials.results.set_trial(trial)
            if trial.is_over:
                break
        if not context.ends_with_run:
            await stop_requested
        elif trials.results is not None:
            fetched = asyncio.create_task(trials.results.finished.wait(), name="fetched")
            await asyncio.wait((fetched, stop_requested), return_when=asyncio.FIRST_COMPLETED)
            fetched.cancel()


def _end_within(seconds: float) -> None:
    """Kill this process if it still runs after `seconds`."""

    def end() -> None:
        log.error("still busy %g s after the request to stop: the process is ended", seconds)
        faulthandler.dump_traceback()
        os._exit(int(ExitCode.ERROR))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _all_finished(services: list[BaseService]) -> None:
    for service in services:
        await service.finished.wait()


_RANK_SERVICES = {
    Service.DATASET_MANAGER: ("ranks.input_files", "InputFiles"),
    Service.TIMING_MANAGER: ("ranks.step_schedule", "StepSchedule"),
    Service.WORKER: ("ranks.courier", "Courier"),
    Service.RECORD_PROCESSOR: ("ranks.step_reader", "StepReader"),
    Service.RECORDS_MANAGER: ("ranks.step_results", "StepResults"),
}
"""Module and class of the services that have another class if the workers are ranks."""


def service_class(name: Service, *, is_on_ranks: bool = False) -> type[BaseService]:
    """Return the class of a service, imported only where it runs to keep workers small."""
    module, class_name = name.value.replace("-", "_"), name.value.title().replace("-", "")
    if is_on_ranks:
        module, class_name = _RANK_SERVICES.get(name, (module, class_name))
    found: type[BaseService] = getattr(import_module(f"aiperf_svc.services.{module}"), class_name)
    return found
