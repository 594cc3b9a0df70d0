"""Stops and late grants, with a client that only records requests."""

import itertools
import tracemalloc
from collections.abc import Sequence
from random import Random
from time import time_ns
from typing import Any

import pytest

from aiperf_svc.adapters.inference.entry_cache import EntryCache
from aiperf_svc.adapters.inference.request import PreparedTurn, Request
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.core.endpoints.history import Defect
from aiperf_svc.core.load.credit_ledger import CreditLedger
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.credits import CreditsGranted, PhaseOpened, PhaseStopped
from aiperf_svc.protocol.messages.dataset import Conversation, DatasetBlock, Turn
from aiperf_svc.services import load_generator
from aiperf_svc.services.load_generator import LoadGenerator
from tests.support.small_configs import small_config

HEAD = ("run", "timing-manager", 1)
PAST = 1_000


class NotingClient:
    """Accepts requests and never responds."""

    def __init__(self) -> None:
        self.requests_sent = self.retries = self.unasked = self.in_flight = self.held_back_ns = 0
        self.clock_steps_ns = self.ended_near_steps = 0
        self.preconnected: list[int] = []
        self.lets_connect = True

    def send(self, _: Request) -> None:
        self.requests_sent += 1
        self.in_flight += 1

    def revoke_unwritten(self) -> list[Request]:
        return []

    def preconnect(self, count: int) -> bool:
        self.preconnected.append(count)
        return self.lets_connect

    def poll_often(self, is_on: bool) -> None:
        pass

    def wake_at(self, wall_ns: int | None) -> None:
        pass


class KeepingClient(NotingClient):
    """Keeps the requests in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Request] = []

    def send(self, request: Request) -> None:
        super().send(request)
        self.sent.append(request)


class UnconnectedClient(KeepingClient):
    """Has no connection for the requests that it keeps."""

    def revoke_unwritten(self) -> list[Request]:
        taken, self.sent = self.sent, []
        self.in_flight -= len(taken)
        return taken


def generator(*turns: Turn) -> LoadGenerator:
    config = small_config("http://127.0.0.1:1", load={"concurrency": 2, "requests": 1})
    entries = EntryCache(resolve_target(config), lambda block: None)
    conversation = Conversation("c", turns or (Turn(b"{}"),))
    entries.put(DatasetBlock(*HEAD, 0, 1, 1, 0, 0, (conversation,), bytes(4)))
    made = LoadGenerator(
        run_id="run",
        entries=entries,
        is_streaming=False,
        connection_limit=100,
        to_history=lambda turn, following, request: [([], ()) for _ in following],
        on_starved=lambda: None,
    )
    made.attach(NotingClient())  # type: ignore[arg-type]
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, False, 2, 0, 0, 1), 0)
    return made


def ended() -> Request:
    request = Request(PreparedTurn(b"", b"", 0, 0), b"", Phase.PROFILING, 0, PAST, 0)
    request.write_wall_ns = request.end_wall_ns = PAST
    return request


def granted(first: int, count: int) -> CreditsGranted:
    return CreditsGranted(*HEAD, Phase.PROFILING, first, 1, count)


def test_each_user_has_one_request_in_flight() -> None:
    made = generator()
    made.grant(granted(0, 10), 0)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.granted, counts.requests_sent) == (10, 2)


@pytest.mark.parametrize(
    ("extended", "counts"),
    [
        (([], ()), {"turns_completed": 1, "history_defects": (0,) * 5, "errored": 0}),
        (
            ([], (Defect.NO_ID, Defect.UNCALLED)),
            {"turns_completed": 1, "history_defects": (0, 1, 0, 0, 1), "errored": 0},
        ),
        (RecursionError(), {"turns_completed": 0, "history_defects": (0,) * 5, "errored": 1}),
    ],
)
def test_defects_of_a_history_are_counted(
    extended: tuple[list[bytes], Sequence[Defect]] | RecursionError, counts: dict[str, Any]
) -> None:
    def extend(*_arguments: object) -> list[tuple[list[bytes], Sequence[Defect]]]:
        if isinstance(extended, RecursionError):
            raise extended
        return [extended]

    made = generator(Turn(b"{}"), Turn(b"{}"))
    made._to_history = extend
    made.attach(client := KeepingClient())  # type: ignore[arg-type]
    made.grant(granted(0, 1), 0)
    (request,) = client.sent
    request.write_wall_ns = request.end_wall_ns = PAST
    made.on_end(request, Outcome.COMPLETED)
    found = made.counts(last_seq=0, records_dropped=0)
    assert {name: getattr(found, name) for name in counts} == counts


def test_stop_revokes_unneeded_credits() -> None:
    made = generator()
    made.grant(granted(0, 10), 0)
    made.stop(PhaseStopped(*HEAD, Phase.PROFILING, PAST, 2**62), 0)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.revoked, counts.in_flight) == (8, 2)


def test_grant_in_transit_at_the_stop_is_revoked() -> None:
    made = generator()
    made.grant(granted(0, 10), 0)
    made.stop(PhaseStopped(*HEAD, Phase.PROFILING, PAST, 2**62), 0)
    made.grant(granted(10, 5), 0)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.granted, counts.revoked) == (15, 13)


def test_stop_marks_due_requests_unsent_and_revokes_others() -> None:
    made = generator()
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, True, 1, 0, 0, 1), 0)
    due = [PAST, PAST + 1, PAST + 2, 2**61, 2**61 + 1]
    times = b"".join(time.to_bytes(8, "little") for time in due)
    made.grant(CreditsGranted(*HEAD, Phase.PROFILING, 0, 1, 5, times), 0)
    made.stop(PhaseStopped(*HEAD, Phase.PROFILING, PAST + 10, 2**62), 0)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.unsent, counts.revoked, counts.capped) == (2, 2, 2)


def test_late_open_loop_sends_nothing_after_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = PAST + 6

    class SlowClient(NotingClient):
        def send(self, request: Request) -> None:
            nonlocal now
            super().send(request)
            now += 4

    monkeypatch.setattr(load_generator, "time_ns", lambda: now)
    made, client = generator(), SlowClient()
    made.attach(client)  # type: ignore[arg-type]
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, PAST + 10, 999, True, 9, 0, 0, 1), 0)
    times = b"".join(time.to_bytes(8, "little") for time in range(PAST, PAST + 5))
    made.grant(CreditsGranted(*HEAD, Phase.PROFILING, 0, 1, 5, times), 0)
    made.on_timer(now)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.requests_sent, counts.unsent, counts.revoked) == (1, 4, 0)


def held_bytes() -> int:
    """Return the memory of the code under test and this module, without other threads."""
    own = [tracemalloc.Filter(True, "*/aiperf_svc/*"), tracemalloc.Filter(True, __file__)]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(own).traces)


def test_closed_loop_memory_is_bounded_for_any_reports() -> None:
    made = generator()
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, 2**61, 0, False, 2, 0, 0, 1), 0)
    client: NotingClient = made.client  # type: ignore[assignment]
    ledger = CreditLedger(Phase.PROFILING, users={"w": 2}, total=None)
    request = ended()
    held = []
    tracemalloc.start()
    for second in range(1, 4):
        # 33,000 requests within a second on this worker's clock, and two reports 10 us apart.
        for part in range(50):
            for grant in ledger.closed_loop_grants():
                made.grant(granted(grant.first, grant.count), 0)
            for _ in range(min(660, client.in_flight * 10_000)):
                client.in_flight -= 1
                made.on_end(request, Outcome.COMPLETED)
            for late_ns in (0, 10_000):
                counts = made.counts(last_seq=0, records_dropped=0)
                taken_ns = second * 10**9 + part * 20_000_000 + late_ns
                ledger.returned("w", counts, is_idle=made.is_idle, taken_mono_ns=taken_ns)
                client.in_flight -= 1
                made.on_end(request, Outcome.COMPLETED)
            held.append(held_bytes())
    tracemalloc.stop()
    counts = made.counts(last_seq=0, records_dropped=0)
    assert counts.granted - counts.completed <= 40_000
    assert max(held) < 300_000
    assert max(held[100:]) < max(held[:50]) + 20_000


def test_users_continue_across_parts_of_a_grant() -> None:
    made = generator()
    made.grant(granted(0, 5_000), 0)
    client: NotingClient = made.client  # type: ignore[assignment]
    request = ended()
    for _ in range(5_000):
        client.in_flight -= 1
        made.on_end(request, Outcome.COMPLETED)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.completed, counts.requests_sent, made.is_idle) == (5_000, 5_000, True)


def test_held_back_load_sends_nothing_then_everything() -> None:
    made = generator()
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, True, 0, 0, 0, 1), 0)
    made.hold_back()
    times = b"".join(time.to_bytes(8, "little") for time in (PAST, PAST + 1, PAST + 2))
    made.grant(CreditsGranted(*HEAD, Phase.PROFILING, 0, 1, 3, times), 0)
    assert made.counts(last_seq=0, records_dropped=0).requests_sent == 0
    assert not made.is_idle
    made.resume()
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.requests_sent, counts.capped) == (3, 0)


def test_stop_while_held_back_accounts_for_every_credit() -> None:
    made = generator()
    made.grant(granted(0, 10), 0)
    made.hold_back()
    made.stop(PhaseStopped(*HEAD, Phase.PROFILING, PAST, 2**62), 0)
    made.resume()
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.granted, counts.revoked, counts.in_flight) == (10, 8, 2)


def test_phase_opened_while_held_back_begins_later() -> None:
    made = generator()
    made.hold_back()
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, False, 2, 0, 0, 1), 0)
    made.grant(granted(0, 10), 0)
    assert made.counts(last_seq=0, records_dropped=0).requests_sent == 0
    made.resume()
    assert made.counts(last_seq=0, records_dropped=0).requests_sent == 2


@pytest.mark.parametrize("is_open_loop", [False, True])
def test_every_credit_has_one_outcome_at_any_stop(is_open_loop: bool) -> None:
    turns = (Turn(b"{}"), Turn(b"{}"), Turn(b"{}", delay_ns=2**61))
    for seed in range(200):
        random = Random(seed)
        made, client = generator(*turns), KeepingClient()
        made.attach(client)  # type: ignore[arg-type]
        made.open_phase(
            PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, is_open_loop, 4, 0, 0, 1), 0
        )
        due = b"".join(PAST.to_bytes(8, "little") for _ in range(20)) if is_open_loop else b""
        made.grant(CreditsGranted(*HEAD, Phase.PROFILING, 0, 1, 20, due), 0)
        ends_before_stop = random.randrange(30)
        for ends in itertools.count():
            if ends == ends_before_stop:
                made.stop(PhaseStopped(*HEAD, Phase.PROFILING, PAST, 2**62), 0)
            if not client.sent:
                if ends >= ends_before_stop:
                    break
                continue
            request = client.sent.pop(random.randrange(len(client.sent)))
            request.write_wall_ns = request.end_wall_ns = PAST
            client.in_flight -= 1
            outcomes = [Outcome.COMPLETED] * 8 + [Outcome.ERRORED, Outcome.CANCELLED]
            made.on_end(request, random.choice(outcomes))
        counts = made.counts(last_seq=0, records_dropped=0)
        ended = counts.completed + counts.errored + counts.cancelled
        assert (seed, ended + counts.unsent + counts.revoked) == (seed, 20)
        assert made.is_idle


@pytest.mark.parametrize(("is_open_loop", "expected"), [(False, (0, 1, 9)), (True, (2, 0, 8))])
def test_turns_without_connection_end_their_conversations(
    is_open_loop: bool, expected: tuple[int, int, int]
) -> None:
    made, client = generator(Turn(b"{}"), Turn(b"{}")), UnconnectedClient()
    made.attach(client)  # type: ignore[arg-type]
    made.open_phase(PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, is_open_loop, 2, 0, 0, 1), 0)
    times = [PAST] * 2 + [2**61] * 8
    due = b"".join(time.to_bytes(8, "little") for time in times) if is_open_loop else b""
    made.grant(CreditsGranted(*HEAD, Phase.PROFILING, 0, 1, 10, due), 0)
    first = client.sent.pop(0)
    first.write_wall_ns = first.end_wall_ns = PAST
    made.on_end(first, Outcome.COMPLETED)
    assert sorted(request.turn for request in client.sent) == [0, 1]
    made.stop(PhaseStopped(*HEAD, Phase.PROFILING, time_ns(), 2**62), 0)
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.unsent, counts.cancelled, counts.revoked) == expected
    assert made.is_idle


def ramped(made: LoadGenerator, *, users: int, ramp_s: int) -> int:
    """Open a phase in an hour whose users start evenly over a ramp. Return its start."""
    start = time_ns() + 3600 * 10**9
    ramp_ns = ramp_s * 10**9
    made.open_phase(
        PhaseOpened(*HEAD, Phase.PROFILING, start, 0, 0, False, users, ramp_ns, 0, 1), 0
    )
    return start


def test_connections_are_made_two_seconds_before_users() -> None:
    made = generator()
    start = ramped(made, users=100, ramp_s=100)
    client: NotingClient = made.client  # type: ignore[assignment]
    made.connect_ahead(start - 10**9)
    assert client.preconnected[-1] == 2
    made.connect_ahead(start + 10 * 10**9)
    assert client.preconnected[-1] == 13
    made.connect_ahead(start + 98 * 10**9)
    count = len(client.preconnected)
    assert client.preconnected[-1] == 100
    made.connect_ahead(start + 99 * 10**9)
    assert len(client.preconnected) == count


def test_absent_target_is_preconnected_only_once() -> None:
    made = generator()
    client: NotingClient = made.client  # type: ignore[assignment]
    client.lets_connect = False
    start = ramped(made, users=100, ramp_s=100)
    count = len(client.preconnected)
    made.connect_ahead(start + 50 * 10**9)
    assert len(client.preconnected) == count
