"""Decides who takes part in the run, and who is lost. Pure: its input is heartbeats and the time.

Members register with their first heartbeat. The roster is complete when every expected instance has
registered. When the run is ready it freezes: ranks are final, and instances that appear later (pods
that replace others) take no part. A member that is silent for `SILENCE_NS` is lost permanently: its
epoch is fenced, and its later messages are ignored.
"""

import msgspec

from aiperf_svc.protocol.messages.events import Heartbeat, Member
from aiperf_svc.protocol.services import Service

SILENCE_NS = 3_500_000_000
"""Maximum silence of a member. Heartbeats come every second, and a loss is declared within five
seconds of the last one."""
WAITING_WORKERS_PER_CORE = 4.0
"""Workers per core above which each may be silent longer, since it waits for its turn."""
CONTROL_SILENCE_NS = 30_000_000_000
"""Maximum silence of the five singletons, and of the record processors of a frozen roster if none
of them is heard. Losing them ends the run, since nothing can replace them. Computing the results of
millions of records may block the interpreter for seconds, and on a busy machine a record processor,
which has a low priority, may not run for as long."""
LISTENED_AT_ONCE_NS = 1_500_000_000
"""Maximum step of the listening clock: one and a half heartbeat intervals."""


class ListeningClock:
    """Counts the time in which members' heartbeats could be received, based on the observer's own
    heartbeats.

    If the bus, the observer's process or the machine stops, no heartbeat can be received, so
    silence proves nothing. Between two of the observer's own heartbeats this clock therefore
    advances by at most `LISTENED_AT_ONCE_NS`.
    """

    def __init__(self) -> None:
        self.ns = 0
        self._own_heartbeat_mono_ns = 0

    def handle_own_heartbeat(self, now_mono_ns: int) -> None:
        """Record that the observer received its own heartbeat."""
        self.ns += min(now_mono_ns - self._own_heartbeat_mono_ns, LISTENED_AT_ONCE_NS)
        self._own_heartbeat_mono_ns = now_mono_ns


class _Entry(msgspec.Struct):
    member: Member
    heard_ns: int


class Roster:
    """The members of a run. `number` grows with every change that members must know."""

    def __init__(self, expected: dict[Service, int], *, workers_per_core: float = 1.0) -> None:
        self._expected = expected
        self._silence_ns = round(SILENCE_NS * max(1.0, workers_per_core / WAITING_WORKERS_PER_CORE))
        self._entries: dict[str, _Entry] = {}
        self._counts = dict.fromkeys(expected, 0)
        self._are_ranks_due = False
        """True if ranks and processors must be reassigned. This happens when the roster is read,
        since thousands may join in between."""
        self.number = 0
        self.is_frozen = False
        self.refused: set[str] = set()
        """Ids of late or surplus instances. Each is logged once."""

    def handle_heartbeat(self, beat: Heartbeat, now_ns: int) -> bool:
        """Handle a heartbeat at a time of a `ListeningClock`. Returns whether the roster
        changed."""
        entry = self._entries.get(beat.sender)
        if entry is not None and entry.member.epoch == beat.epoch:
            if not entry.member.lost:
                entry.heard_ns = now_ns
                if beat.clock != entry.member.clock:
                    entry.member = msgspec.structs.replace(entry.member, clock=beat.clock)
            return False
        if self.is_frozen:
            self.refused.add(beat.sender)
            return False
        if entry is None:
            if self._counts.get(beat.service, 0) >= self._expected.get(beat.service, 0):
                self.refused.add(beat.sender)
                return False
            self._counts[beat.service] += 1
        member = Member(
            id=beat.sender,
            service=beat.service,
            epoch=beat.epoch,
            rank=0,
            address=beat.address,
            clock=beat.clock,
        )
        self._entries[beat.sender] = _Entry(member, now_ns)
        self._are_ranks_due = True
        self.number += 1
        return True

    def lose_silent(self, now_ns: int) -> dict[Member, int]:
        """Declare silent members lost, and return them with the length of their silence in ns.
        Before the freeze they are only removed."""
        present = [entry for entry in self._entries.values() if not entry.member.lost]
        heard = {e.member.service for e in present if now_ns - e.heard_ns <= self._silence_ns}
        replaceable = {Service.WORKER}
        if not self.is_frozen or Service.RECORD_PROCESSOR in heard:
            replaceable.add(Service.RECORD_PROCESSOR)
        silent = []
        for entry in present:
            limit_ns = self._silence_ns
            if entry.member.service not in replaceable:
                limit_ns = max(limit_ns, CONTROL_SILENCE_NS)
            if now_ns - entry.heard_ns > limit_ns:
                silent.append(entry)
        if not silent:
            return {}
        for entry in silent:
            if self.is_frozen:
                entry.member = msgspec.structs.replace(entry.member, lost=True)
            else:
                del self._entries[entry.member.id]
                self._counts[entry.member.service] -= 1
        if self.is_frozen:
            self._assign()
        else:
            self._are_ranks_due = True
        self.number += 1
        if not self.is_frozen:
            return {}
        return {entry.member: now_ns - entry.heard_ns for entry in silent}

    def freeze(self) -> None:
        """Freeze the roster. Later instances take no part."""
        if not self.is_frozen:
            self._rank()
            self.is_frozen = True
            self.number += 1

    @property
    def count(self) -> int:
        return len(self._entries)

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, including the lost ones, by service and rank."""
        if self._are_ranks_due:
            self._rank()
        return self._sorted()

    def _sorted(self) -> tuple[Member, ...]:
        members = (entry.member for entry in self._entries.values())
        return tuple(sorted(members, key=lambda m: (m.service, m.rank)))

    def around(self) -> dict[str, tuple[Member, ...]]:
        """Return the peers of each member, including itself: for a worker its processor, for a
        processor its workers, for others all members. Processors come before the workers that will
        send to them."""
        members = self.members
        by_name = {member.id: member for member in members}
        workers: dict[str, list[Member]] = {m.id: [] for m in members if _processes(m)}
        for member in members:
            if member.processor:
                workers[member.processor].append(member)
        found = {name: (by_name[name], *its_own) for name, its_own in workers.items()}
        for member in members:
            if member.service is Service.WORKER:
                processor = by_name.get(member.processor)
                found[member.id] = (member, processor) if processor is not None else (member,)
            elif not _processes(member):
                found[member.id] = members
        return found

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the instances that have not registered, as text: `worker (3 of 4)`."""
        missing = []
        for service, count in sorted(self._expected.items()):
            have = self._counts[service]
            if have < count:
                missing.append(f"{service.value} ({have} of {count})")
        return tuple(missing)

    def _rank(self) -> None:
        self._are_ranks_due = False
        for service in self._expected:
            members = (entry.member for entry in self._entries.values())
            ids = [member.id for member in members if member.service is service]
            for rank, name in enumerate(sorted(ids, key=_natural)):
                entry = self._entries[name]
                entry.member = msgspec.structs.replace(entry.member, rank=rank)
        self._assign()

    def _assign(self) -> None:
        """Assign a record processor to every worker. A worker keeps its processor while the
        processor is alive."""
        members = self._sorted()
        alive = [m.id for m in members if _processes(m) and not m.lost]
        known = set(alive)
        for member in members:
            keeps_its_own = self.is_frozen and member.processor in known
            if member.service is Service.WORKER and not keeps_its_own:
                processor = alive[member.rank % len(alive)] if alive else ""
                assigned = msgspec.structs.replace(member, processor=processor)
                self._entries[member.id].member = assigned


def _processes(member: Member) -> bool:
    return member.service is Service.RECORD_PROCESSOR


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key that orders `worker-10` after `worker-9`."""
    stem, _, tail = name.rpartition("-")
    return (stem, int(tail), "") if tail.isdigit() else (name, -1, tail)
