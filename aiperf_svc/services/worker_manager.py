"""Worker manager: maintains the roster of services, and detects lost ones."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from aiperf_svc.adapters.messaging.bus import UP, Bus, topic_of
from aiperf_svc.core.control.control_intervals import republish_interval_s, roster_interval_s
from aiperf_svc.core.control.roster import ListeningClock, Roster
from aiperf_svc.protocol.messages.events import Heartbeat, Member, RosterPublished
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, every, is_set_within, mono_ns
from aiperf_svc.services.context import RunContext

CHECK_S = 0.25


class WorkerManager(BaseService):
    """Publishes the roster: to the control services while it grows, and once it is frozen to each
    member the part that concerns it."""

    service = Service.WORKER_MANAGER
    is_control = True

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        topology = context.topology
        self._roster = Roster(topology.expected, workers_per_core=topology.workers_per_core)
        self._clock = ListeningClock()
        self._seen: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._refused: set[str] = set()
        self.work = {RunState.READY: self._freeze}

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._publish_roster(), every(CHECK_S, self._lose_silent)]

    def on_heartbeat(self, beat: Heartbeat) -> None:
        if beat.sender == self.id:
            self._clock.handle_own_heartbeat(mono_ns())
        self._seen[beat.sender] = beat.seen_roster
        if self._roster.handle_heartbeat(beat, self._clock.ns):
            self._changed.set()
        if len(self._roster.refused) > len(self._refused):
            for name in self._roster.refused - self._refused:
                self._refused.add(name)
                self.log.warning("%s registered too late, or is one too many; it stays idle", name)

    async def _freeze(self) -> None:
        self._roster.freeze()
        self._changed.set()

    def _lose_silent(self) -> None:
        for member, silent_ns in self._roster.lose_silent(self._clock.ns).items():
            silent_s = silent_ns / 1e9
            self.log.error("%s is lost: no heartbeat for %.1f s", member.id, silent_s)
            # It is informed if it reports again.
            self._seen[member.id] = sys.maxsize
            self._changed.set()

    async def _publish_roster(self) -> None:
        while True:
            unseen = self._unseen()
            if self._changed.is_set() or unseen:
                self._changed.clear()
                # Created before the first one is sent, because the roster may change while a
                # message waits.
                for topic, message in self._messages(unseen):
                    await self.publish(topic, message)
                await asyncio.sleep(roster_interval_s(self._roster.count))
            await is_set_within(self._changed, republish_interval_s(self._roster.count))

    def _unseen(self) -> list[Member]:
        """Return the members that have not confirmed the current roster."""
        number = self._roster.number
        members = self._roster.members
        return [m for m in members if self._seen.get(m.id, 0) < number]

    def _messages(self, unseen: list[Member]) -> list[tuple[bytes, RosterPublished]]:
        """Return the roster's messages. Until it is frozen, only the control services receive it.
        Then each member receives the part that concerns it, because sending all names to all
        members would be too much for one process."""
        if not self._roster.is_frozen:
            return [(UP, self._message(self._roster.members))]
        around = self._roster.around()
        messages = [(topic_of(m.id), self._message(around[m.id])) for m in unseen]
        return messages + [(topic_of(name), self._message(())) for name in self._refused]

    def _message(self, members: tuple[Member, ...]) -> RosterPublished:
        missing = self._roster.missing
        return RosterPublished(
            *self.header,
            number=self._roster.number,
            frozen=self._roster.is_frozen,
            complete=not missing,
            missing=missing,
            members=members,
        )
