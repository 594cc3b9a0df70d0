"""Calls the hooks of a run. The timing manager owns it, since only that knows when a phase begins
and ends.

If a hook before a phase fails, the phase does not begin. The hooks after it are called anyway, so a
profiler that was started is stopped.

A held run calls the hooks before its first phase while it is configured. It gets its start time
when all runs that start together are ready, so a hook delays none of them.
"""

import asyncio
import logging
import time

from aiperf_svc.adapters.inference.side_requests import call_hook
from aiperf_svc.config.hooks import Hook
from aiperf_svc.config.units import format_duration
from aiperf_svc.core.load.phase_hooks import When, hooks_at, origins
from aiperf_svc.domain.errors import BenchmarkFailed
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.reports import HookCall
from aiperf_svc.services.context import RunContext

log = logging.getLogger("hooks")


class HookCalls:
    """Calls each hook once for each server, sequentially."""

    def __init__(self, context: RunContext) -> None:
        self._config, self._run_id = context.inference, context.run_id
        self._made: dict[Phase, tuple[HookCall, ...]] = {}
        self._limit: asyncio.Timeout | None = None
        self._is_stopped = False
        self._open: Phase | None = None
        """The phase whose first hooks have been called, but not those after it."""

    def made(self, phase: Phase) -> tuple[HookCall, ...]:
        """Return the calls before and after a phase so far."""
        return self._made.get(phase, ())

    def stop(self) -> None:
        """Stop waiting for a hook before a phase, because the run ends."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def before(self, phase: Phase, *, is_first: bool) -> None:
        """Call the hooks before a phase once. The rest is skipped when the run is stopped. Raises
        BenchmarkFailed if one fails."""
        if self._open is phase:
            return
        self._open = phase
        for hook in hooks_at(self._config.endpoint, "before", phase, is_first=is_first):
            for origin in origins(self._config.endpoint):
                if self._is_stopped:
                    return
                made = await self._call(hook, origin, "before", phase)
                if made.problem and not self._is_stopped:
                    await self.after(phase)
                    raise BenchmarkFailed(f"{made.text}: {made.problem}; the load has not begun")

    async def after(self, phase: Phase) -> None:
        """Call all hooks after a phase, whatever they return."""
        self._open = None
        for hook in hooks_at(self._config.endpoint, "after", phase, is_first=False):
            for origin in origins(self._config.endpoint):
                made = await self._call(hook, origin, "after", phase)
                if made.problem:
                    log.warning("%s: %s", made.text, made.problem)

    async def close(self) -> None:
        """Call the hooks after a phase that did not begin although the hooks before it were
        called."""
        if self._open is not None:
            await self.after(self._open)

    async def _call(self, hook: Hook, origin: str, when: When, phase: Phase) -> HookCall:
        timeout_ns = hook.timeout or self._config.endpoint.request_timeout
        name = phase.name.lower()
        text = f"the hook {hook.method} {origin}{hook.path} {when} {name}"
        log.info("calling %s", text)
        began = time.monotonic()
        request_id = f"{self._run_id}-{when}-{name}"
        try:
            async with asyncio.timeout(timeout_ns / 1e9) as limit:
                self._limit = limit if when == "before" else None
                problem = await call_hook(hook, origin, self._config, request_id)
        except TimeoutError:
            problem = f"no response within {format_duration(timeout_ns)}"
            if self._is_stopped and when == "before":
                problem = "not waited for, because the run was stopped"
        finally:
            self._limit = None
        took_ms = (time.monotonic() - began) * 1e3
        made = HookCall(text=text, took_ms=took_ms, problem=problem)
        self._made[phase] = (*self.made(phase), made)
        return made
