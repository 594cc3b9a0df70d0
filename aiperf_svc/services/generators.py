"""Chooses the load generator of a load, and contains two generators for special loads: a limit on
requests that wait for their first token, and queries of several requests.

Only workers of such a load use these classes, so all other workers pay nothing for them.
"""

from collections import deque
from time import time_ns
from typing import Any

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.entry_cache import Entry
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.several_targets import SeveralTargets
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES
from aiperf_svc.core.datasets.cache_bust import run_markers
from aiperf_svc.core.load.abandonment import abandonment_of
from aiperf_svc.core.load.ramp import PrefillSlots, opening_times
from aiperf_svc.core.responses.first_tokens import FirstTokens
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.credits import PhaseOpened
from aiperf_svc.protocol.records import Flag
from aiperf_svc.services.load_generator import LoadGenerator
from aiperf_svc.services.sessions import Session
from aiperf_svc.services.tree_generator import TreeGenerator

_COMPLETED = int(Outcome.COMPLETED)
_CAPPED, _LAST_TURN = int(Flag.CAPPED), int(Flag.LAST_TURN)


class PrefillGenerator(LoadGenerator):
    """A closed or open loop whose requests hold a slot until their first token.

    Later turns of conversations get a free slot first, then requests in the order of their due
    times. A request that waited for a slot is flagged as capped, like a request that waited for the
    cap of an open loop.
    """

    def __init__(self, *, first_tokens: FirstTokens, **arguments: Any) -> None:
        """`arguments` are the arguments of every load generator."""
        self._first_tokens = first_tokens
        super().__init__(**arguments)

    def attach(self, client: InferenceClient | SeveralTargets) -> None:
        super().attach(client)
        self._send_now, self._send = self._send, self._send_in_slot

    def _reset(self, phase: Phase) -> None:
        super()._reset(phase)
        self._slots = PrefillSlots(None)
        self._turns_waiting: deque[tuple[Session, int]] = deque()
        """Later turns that wait for a slot, with their due times."""
        self._users_waiting = 0
        """Number of users at the head of the queue that wait for a slot."""
        self._cap = self._limit

    def open_phase(self, message: PhaseOpened, offset_ns: int) -> None:
        super().open_phase(message, offset_ns)
        if message.prefill_concurrency:
            self._slots = PrefillSlots(
                opening_times(
                    count=message.prefill_concurrency,
                    rank=message.worker_rank,
                    workers=message.worker_count,
                    start_ns=message.start_wall_ns - offset_ns,
                    ramp_ns=message.prefill_ramp_ns,
                )
            )
        self._cap = self._limit

    def connect_ahead(self, now: int) -> None:
        """Open connections for users that start soon, and use the slots of a ramp."""
        super().connect_ahead(now)
        if self._slots.is_ramping:
            self._run_due(now)

    # --- called by the client --------------------------------------------------------------------

    def on_part(self, request: Request) -> None:
        """Handle more bytes of a response: its first token frees its slot."""
        if not request.body_offset or not self._slots.holds(request):
            return
        assert request.kept is not None
        if not self._first_tokens.has_come(
            request, request.kept, body_offset=request.body_offset, framing=request.framing
        ):
            return
        if request.flags & _LAST_TURN:
            # Its bytes are not needed, so the fast path reads the rest.
            request.kept = None
        self._slots.give_back(request)
        self._run_due(time_ns())

    def on_end(self, request: Request, outcome: int) -> None:
        """Handle the end of a request, which frees its slot if there was no first token."""
        self._slots.give_back(request)
        self._first_tokens.forget(request)
        if outcome == _COMPLETED:
            session: Session | None = request.session
            if session is not None and session.turn + 1 < session.turns:
                self._continue(session, request)
                return
        self._end_into_queue(request, outcome)

    # --- sending ---------------------------------------------------------------------------------

    def _send_in_slot(self, request: Request) -> None:
        self._slots.take(request)
        if request.kept is None:
            # The flag makes the client call `on_part` for each read.
            request.kept = bytearray()
        self._send_now(request)

    def _run_closed_loop(self, now: int) -> None:
        self._send_waiting_turns(now)
        openings, users, credits = self._openings, self._users, self._credits
        unpack, slots = self._held.unpack, self._slots
        while openings and openings[0] <= now:
            users.append(openings.popleft())
        while users and slots.has_free and (credits or unpack()):
            entry = self._find(credits[0])
            if entry is None:
                return
            flags = 0
            if self._users_waiting:
                self._users_waiting -= 1
                self.capped += 1
                flags = _CAPPED
            self._begin(entry, credits.popleft(), users.popleft(), flags)
        self._users_waiting = 0 if slots.has_free else len(users)
        if users and not self._held:
            self._on_starved()

    def _run_open_loop(self, now: int) -> None:
        self._send_waiting_turns(now)
        self._fit_limit()
        super()._run_open_loop(now)

    def _begin(self, entry: Entry, index: int, due: int, flags: int) -> None:
        super()._begin(entry, index, due, flags)
        if self._is_open_loop:
            self._fit_limit()

    def _fit_limit(self) -> None:
        """Set the cap of an open loop to the number of requests that the free slots allow now."""
        free = self._slots.free
        if free is not None:
            self._limit = min(self._cap, self._active + free)

    def _send_turn(self, session: Session, due: int) -> None:
        if session.turn and (self._turns_waiting or not self._slots.has_free):
            self._turns_waiting.append((session, due))
        else:
            super()._send_turn(session, due)

    def _send_waiting_turns(self, now: int) -> None:
        self._slots.open(now)
        while self._turns_waiting and self._slots.has_free:
            session, due = self._turns_waiting.popleft()
            session.flags |= _CAPPED
            self.capped += 1
            super()._send_turn(session, due)

    def _revoke_remaining(self) -> None:
        """Revoke the remaining credits. Conversations whose next turn waits for a slot end here,
        cut by the stop."""
        sessions = len(self._turns_waiting)
        self._turns_waiting.clear()
        self._users_waiting = 0
        super()._revoke_remaining()
        self._active -= sessions
        self.cancelled += sessions


class QueryGenerator(LoadGenerator):
    """A closed loop whose users all start at once. Query `q` has `n` credits from `q * n` on, with
    `n` users. Its requests are due when the last response of the previous query has ended."""

    def on_end(self, request: Request, outcome: int) -> None:
        """Handle the end of a request; after the last of a query, start the next query."""
        self._end_into_queue(request, outcome)

    def _run_closed_loop(self, now: int) -> None:
        openings, users, size = self._openings, self._users, self._limit
        while openings and openings[0] <= now:
            users.append(openings.popleft())
        if len(users) < size:
            return
        if len(self._held) < size or not self._held.unpack():
            self._on_starved()
            return
        first = self._credits[0]
        entries = [self._find(first + place) for place in range(size)]
        if any(entry is None for entry in entries):
            return
        due = max(users)
        users.clear()
        for entry in entries:
            assert entry is not None
            self._held.unpack()
            self._begin(entry, self._credits.popleft(), due, 0)


def generator_of(config: BenchmarkConfig, **arguments: Any) -> LoadGenerator:
    """Return the generator for the load of a config. `arguments` are those of every generator."""
    load = config.load
    arguments["markers"] = run_markers(config)
    arguments["issuing_header"] = config.endpoint.session_response_header
    if load.samples_per_query > 1:
        return QueryGenerator(**arguments)
    if config.dataset.kind in AGENT_TRACES:
        arguments |= {"seed": config.random_seed, "max_delay_ns": config.dataset.max_delay}
        return TreeGenerator(agentic=load.agentic, **arguments)
    arguments["abandonment"] = abandonment_of(config)
    arguments["turn_gap_ns"] = load.user_centric.turn_gap_ns if load.user_centric else 0
    if not load.limits_prefill:
        return LoadGenerator(**arguments)
    first_tokens = FirstTokens(ResponseFormat.of(config.endpoint))
    return PrefillGenerator(first_tokens=first_tokens, **arguments)
