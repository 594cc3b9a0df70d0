"""Decides what a worker sends, and when: users, due times and conversations on top of the inference
client.

Closed loop: each user (slot) sends its next request when the response to its last one has ended.
The request is due at the kernel's timestamp of that end, so any delay in this process appears as
schedule lag. Open loop: each credit has a due time, and a kernel timer fires at that time. A credit
is a conversation; it keeps its user during the pauses between its turns.

`grant` and the ends of requests add work, `_run_due` sends what is due, and `_arm` sets the single
timer to the next due time. The handler of an error never sends directly (requests go through the
queue), so a target that fails at once cannot cause a recursion.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count as counter
from time import time_ns
from typing import Final

import numpy as np

from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.entry_cache import Entry, EntryCache
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.several_targets import SeveralTargets
from aiperf_svc.core.datasets.cache_bust import RunMarkers
from aiperf_svc.core.endpoints.history import Defect
from aiperf_svc.core.load.abandonment import Abandonment
from aiperf_svc.core.load.credit_queue import CreditQueue, PackedPairs
from aiperf_svc.core.load.ramp import ConnectionsAhead, opening_times
from aiperf_svc.core.responses.http1 import issued_header
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.domain.request_ids import INDEX_BASE, id_prefix, turn_prefix
from aiperf_svc.protocol.messages.credits import CreditsGranted, PhaseOpened, PhaseStopped
from aiperf_svc.protocol.messages.dataset import Turn
from aiperf_svc.protocol.messages.reports import WorkerCounts
from aiperf_svc.protocol.records import Flag
from aiperf_svc.services.abandonments import Abandonments
from aiperf_svc.services.sessions import Session

CONNECT_BACKOFF_NS: Final = 10_000_000
"""Pause of a user whose connection failed: each user contacts an unreachable target a hundred times
per second instead of ten thousand times."""
NEVER: Final = 2**62

Added = tuple[list[bytes], Sequence[Defect]]
"""The additions of a turn and its response to a history, and their defects."""
ToHistory = Callable[[Turn, Sequence[Turn], Request], list[Added]]

_COMPLETED = int(Outcome.COMPLETED)
_CANCELLED, _ABANDONED = int(Outcome.CANCELLED), int(Outcome.ABANDONED)
_LAST_TURN, _STREAMED, _CAPPED = int(Flag.LAST_TURN), int(Flag.STREAMED), int(Flag.CAPPED)


class LoadGenerator:
    """Runs one phase at a time. All times in its interface are this worker's wall clock."""

    def __init__(
        self,
        *,
        run_id: str,
        entries: EntryCache,
        is_streaming: bool,
        connection_limit: int,
        to_history: ToHistory,
        on_starved: Callable[[], None],
        abandonment: Abandonment | None = None,
        turn_gap_ns: int = 0,
        markers: RunMarkers | None = None,
        issuing_header: str | None = None,
    ) -> None:
        """`to_history(turn, following_turns, request)` returns, for each turn that may follow, the
        additions of a turn and its response to a history, including the following turn's tool
        results, and their defects. `on_starved` is called when users wait because the credits have
        run out. `abandonment` describes the clients that leave before their response has ended.
        `turn_gap_ns` sets the interval between the turns of a conversation. `markers` are put into
        the requests. The `issuing_header` of a response is returned in the later requests of its
        conversation."""
        self._run_id = run_id
        self._entries = entries
        self._base_flags = _STREAMED if is_streaming else 0
        self._connection_limit = connection_limit
        self._to_history = to_history
        self._on_starved = on_starved
        self._abandonment = abandonment
        self._turn_gap_ns = turn_gap_ns
        self._markers = markers
        self._issuing_header = issuing_header
        self.client: InferenceClient | SeveralTargets = None  # type: ignore[assignment]  # given by `attach`
        self._order = counter()
        self._is_held_back = False
        self._reset(Phase.PROFILING)
        self._is_open = False

    def attach(self, client: InferenceClient | SeveralTargets) -> None:
        """Set the client whose request ends and timer are handled here."""
        self.client = client
        self._send: Callable[[Request], object] = client.send
        self._abandonments: Abandonments | None = None
        if self._abandonment is not None:
            self._abandonments = Abandonments(self._abandonment, client, self._arm)
            self._send = self._abandonments.send
        if self._markers is not None:
            self._send = _marking(self._send, self._markers)

    def _reset(self, phase: Phase) -> None:
        self.phase = int(phase)
        self._id_prefix = id_prefix(self._run_id, phase).encode()
        self._first_id_prefix = turn_prefix(self._id_prefix, 0)
        self._is_open_loop = False
        self._held = held = CreditQueue(is_held=self._is_held_back)
        """Number of credits that the worker holds."""
        # The queue's own deques, which saves an attribute access per credit.
        self._credits, self._due = held.next, held.next_due
        self._turns: dict[int, int] = {}
        """Number of turns by credit, if it is limited."""
        self._whole: list[Entry] | None = None
        """All entries of the phase, once they have arrived."""
        self._users: deque[int] = deque()
        """Users that wait for a credit: the time since which each is free."""
        self._openings: deque[int] = deque()
        """Times at which more users start."""
        self._ahead = ConnectionsAhead()
        self._later: list[tuple[int, int, Session | None]] = []
        """Heap of (due, order, session for its next turn | None for a user to be freed)."""
        self._waiting = PackedPairs()
        """Requests that wait for the cap in open loop: (index, due)."""
        self._limit = NEVER
        self._active = 0
        """Number of started credits that have not ended."""
        self._stop = self._cancel = NEVER
        self._is_stopped = False
        self._is_paused = self._is_held_back
        """True while nothing is sent: after the stop, or while the load is held back."""
        self.granted = self.completed = self.errored = self.cancelled = self.abandoned = 0
        self.turns_completed = 0
        self._history_defects = [0] * len(Defect)
        self._longest_pause_ns = 0
        self.unsent = self.revoked = self.capped = self.connecting = 0
        self._sent_before = self._retries_before = self._unasked_before = 0
        self._steps_before_ns = self._ended_near_steps_before = self._held_back_before_ns = 0

    # --- called by the timing manager ------------------------------------------------------------

    def open_phase(self, message: PhaseOpened, offset_ns: int) -> None:
        """Prepare a phase; local times plus `offset_ns` are the manager's times."""
        self._reset(message.phase)
        self._is_open = True
        self._whole = self._entries.whole(self.phase)
        self._sent_before = self.client.requests_sent
        self._retries_before = self.client.retries
        self._unasked_before = self.client.unasked
        self._steps_before_ns = self.client.clock_steps_ns
        self._held_back_before_ns = self.client.held_back_ns
        self._ended_near_steps_before = self.client.ended_near_steps
        self.client.poll_often(True)
        self._is_open_loop = message.is_open_loop
        start = message.start_wall_ns - offset_ns
        if message.stop_wall_ns:
            self._stop = message.stop_wall_ns - offset_ns
            self._cancel = self._stop + message.grace_ns
        users = len(range(message.worker_rank, message.concurrency, message.worker_count))
        if message.is_open_loop:
            cap = users if message.concurrency else NEVER
            self._limit = min(cap, self._connection_limit)
        else:
            self._limit = users
            self._openings = deque(
                opening_times(
                    count=message.concurrency,
                    rank=message.worker_rank,
                    workers=message.worker_count,
                    start_ns=start,
                    ramp_ns=message.ramp_ns,
                )
            )
            self._ahead = ConnectionsAhead(self._openings)
            self.connect_ahead(time_ns())
        self._arm()

    def connect_ahead(self, now: int) -> None:
        """Open connections for the users that start soon. Called again during a ramp."""
        wanted = self._ahead.wanted(now)
        if wanted is not None and not self.client.preconnect(min(wanted, self._connection_limit)):
            self._ahead.stop()

    def grant(self, message: CreditsGranted, offset_ns: int) -> None:
        if message.phase != self.phase or not self._is_open:
            return
        self.granted += message.count
        last = message.first_index + (message.count - 1) * message.stride
        due = np.frombuffer(message.due_wall_ns, dtype="<i8") - offset_ns
        self._held.add(range(message.first_index, last + 1, message.stride), due)
        if message.last_turns:
            self._turns[last] = message.last_turns
        self._run_due(time_ns())

    def stop(self, message: PhaseStopped, offset_ns: int) -> None:
        """Stop earlier than announced."""
        if message.phase == self.phase:
            self._stop = min(self._stop, message.stop_wall_ns - offset_ns)
            self._cancel = min(self._cancel, message.cancel_wall_ns - offset_ns)
            self._run_due(time_ns())

    def hold_back(self) -> None:
        """Send nothing until `resume`. Requests that become due in the meantime are late, which
        appears in their schedule lag."""
        self._is_held_back = self._is_paused = True
        self._held.hold()
        self._arm()

    def resume(self) -> None:
        self._is_held_back = False
        self._is_paused = self._is_stopped
        self._held.release()
        self._run_due(time_ns())

    def entries_arrived(self) -> None:
        """Continue with dataset entries that have arrived."""
        self._whole = self._entries.whole(self.phase)
        self._run_due(time_ns())

    # --- for reports -----------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if no credit is held or in progress."""
        return not self._active and not self._held and not self._waiting

    def counts(self, *, last_seq: int, records_dropped: int) -> WorkerCounts:
        """Return the counts of this phase's credits so far."""
        client = self.client
        return WorkerCounts(
            Phase(self.phase),
            granted=self.granted,
            completed=self.completed,
            errored=self.errored,
            cancelled=self.cancelled,
            abandoned=self.abandoned,
            turns_completed=self.turns_completed,
            unsent=self.unsent,
            revoked=self.revoked,
            requests_sent=client.requests_sent - self._sent_before,
            in_flight=client.in_flight,
            capped=self.capped,
            last_seq=last_seq,
            records_dropped=records_dropped,
            clock_steps_ns=client.clock_steps_ns - self._steps_before_ns,
            ended_near_steps=client.ended_near_steps - self._ended_near_steps_before,
            retries=client.retries - self._retries_before,
            held_back_ns=client.held_back_ns - self._held_back_before_ns,
            longest_pause_ns=self._longest_pause_ns,
            connecting=self.connecting,
            history_defects=tuple(self._history_defects),
            unasked=client.unasked - self._unasked_before,
        )

    # --- called by the client --------------------------------------------------------------------

    def on_timer(self, now: int) -> None:
        """Send what is due, after abandoning the requests that are due to be abandoned."""
        if self._abandonments is not None:
            self._abandonments.run(now)
        self._run_due(now)

    def on_end(self, request: Request, outcome: int) -> None:
        """Continue the conversation of an ended request, or end its credit and free its user."""
        if outcome == _COMPLETED:
            session: Session | None = request.session
            if session is not None and session.turn + 1 < session.turns:
                self._continue(session, request)
                return
        end = request.end_wall_ns
        self._active -= 1
        if outcome == _COMPLETED:
            self.completed += 1
        elif outcome == _CANCELLED:
            self.cancelled += 1
        else:
            if outcome == _ABANDONED:
                self.abandoned += 1
            else:
                self.errored += 1
            pause = 0 if request.was_written else CONNECT_BACKOFF_NS
            heapq.heappush(self._later, (end + pause, next(self._order), None))
            self._arm()
            return
        if self._is_stopped:
            return
        if self._is_open_loop:
            if self._waiting:
                self._run_due(time_ns())
            return
        credits = self._credits
        if credits and end < self._stop and not self._users:
            entry = self._find(credits[0])
            if entry is not None:
                self._begin(entry, credits.popleft(), end, 0)
                return
        self._users.append(end)
        if not credits:
            if self._held.unpack():
                self._run_due(time_ns())
                return
            if not self._held:
                self._on_starved()
        if end >= self._stop:
            self._run_due(end)

    def _end_into_queue(self, request: Request, outcome: int) -> None:
        """End a credit and send what is due. Its user always goes through the queue."""
        self._active -= 1
        pause = 0
        if outcome == _COMPLETED:
            self.completed += 1
        elif outcome == _CANCELLED:
            self.cancelled += 1
        elif outcome == _ABANDONED:
            self.abandoned += 1
        else:
            self.errored += 1
            pause = 0 if request.was_written else CONNECT_BACKOFF_NS
        free = request.end_wall_ns + pause
        heapq.heappush(self._later, (free, next(self._order), None))
        if outcome == _COMPLETED:
            self._run_due(time_ns())
        else:
            self._arm()

    # --- sending ---------------------------------------------------------------------------------

    def _find(self, index: int) -> Entry | None:
        """Return the entry that a credit sends; None until the dataset manager has sent it."""
        whole = self._whole
        return whole[index % len(whole)] if whole else self._entries.find(self.phase, index)

    def _run_due(self, now: int) -> None:
        """Send everything that is due at `now`, and set the timer to the next due time."""
        if not self._is_open:
            return
        if now >= self._stop and (not self._is_stopped or self._held):
            # A grant may have been in transit when the phase stopped.
            self._revoke_remaining()
        if now >= self._cancel:
            self._cancel = NEVER
            self._cancel_all()
        if not self._is_paused:
            later = self._later
            while later and later[0][0] <= now:
                due, _, session = heapq.heappop(later)
                if session is not None:
                    self._send_turn(session, due)
                elif not self._is_open_loop:
                    self._users.append(due)
            if self._is_open_loop:
                self._run_open_loop(now)
            else:
                self._run_closed_loop(now)
        self._arm()

    def _run_closed_loop(self, now: int) -> None:
        openings, users, credits = self._openings, self._users, self._credits
        unpack = self._held.unpack
        while openings and openings[0] <= now:
            users.append(openings.popleft())
        while users and (credits or unpack()):
            entry = self._find(credits[0])
            if entry is None:
                return
            self._begin(entry, credits.popleft(), users.popleft(), 0)

    def _run_open_loop(self, now: int) -> None:
        waiting, credits, due = self._waiting, self._credits, self._due
        unpack, stop = self._held.unpack, self._stop
        while waiting and self._active < self._limit:
            entry = self._find(waiting.first()[0])
            if entry is None:
                return
            self._begin(entry, *waiting.popleft(), _CAPPED)
        while (credits or unpack()) and due[0] <= now:
            if self._active >= self._limit:
                self.capped += 1
                waiting.append((credits.popleft(), due.popleft()))
                continue
            entry = self._find(credits[0])
            if entry is None:
                return
            self._begin(entry, credits.popleft(), due.popleft(), 0)
            now = time_ns()
            if now >= stop:
                return  # the timer, which is due, counts the rest as unsent

    def _begin(self, entry: Entry, index: int, due: int, flags: int) -> None:
        self._active += 1
        if entry.turns > 1:
            turns = min(self._turns.get(index, entry.turns), entry.turns)
            session_id = b"%b%d" % (self._first_id_prefix, INDEX_BASE + index)
            self._send_turn(Session(index, entry, turns, flags, due, session_id), due)
            return
        flags |= self._base_flags | _LAST_TURN
        prefix = self._first_id_prefix
        self._send(Request(entry.only, prefix, self.phase, index, due, flags))

    def _send_turn(self, session: Session, due: int) -> None:
        is_last = session.turn + 1 == session.turns
        history, issued = session.history, session.issued
        prepared = session.entry.prepare(session.turn, history, session.id, issued)
        prefix = turn_prefix(self._id_prefix, session.turn)
        flags = self._base_flags | session.flags | (_LAST_TURN if is_last else 0)
        turn = session.entry.turn(session.turn)
        is_live = not is_last and not turn.recorded and not turn.is_whole
        reads_header = self._issuing_header is not None and not is_last
        kept = bytearray() if is_live or reads_header else None
        self._send(Request(prepared, prefix, self.phase, session.index, due, flags, session, kept))

    def _continue(self, session: Session, request: Request) -> None:
        entry, end = session.entry, request.end_wall_ns
        turn, following = entry.turn(session.turn), entry.turn(session.turn + 1)
        added: Sequence[bytes] = ()
        defects: Sequence[Defect] = ()
        try:
            if not turn.is_whole:
                ((added, defects),) = self._to_history(turn, (following,), request)
        except Exception:
            # The bytes are not a response. The record has the error, and the credit ends here.
            self._end_into_queue(request, int(Outcome.ERRORED))
            return
        if self._is_stopped:
            # The conversation ends here, like those between two turns at the stop.
            self._active -= 1
            self.cancelled += 1
            return
        self.turns_completed += 1
        if self._issuing_header is not None:
            session.issued = self._issued(request) or session.issued
        session.history += added
        self.count_defects(defects)
        session.turn += 1
        session.flags &= ~_CAPPED  # the previous turn waited
        if self._turn_gap_ns:
            due = session.next_by_clock(end + following.delay_ns, self._turn_gap_ns)
        else:
            due = max(end + following.delay_ns, session.due + following.earliest_ns)
        self._longest_pause_ns = max(self._longest_pause_ns, due - end)
        heapq.heappush(self._later, (due, next(self._order), session))
        self._run_due(time_ns())

    def _issued(self, request: Request) -> bytes:
        """Return the header that a response issues; empty if it issues none."""
        assert self._issuing_header is not None
        head = bytes(request.kept[: request.body_offset]) if request.kept else b""
        return issued_header(head, self._issuing_header)

    def count_defects(self, defects: Sequence[Defect]) -> None:
        """Count the defects of a response that is added to a history."""
        for defect in defects:
            self._history_defects[defect] += 1

    # --- stopping --------------------------------------------------------------------------------

    def _revoke_remaining(self) -> None:
        """Stop: count due turns that were not written as unsent, and revoke later turns."""
        self._is_stopped = self._is_paused = True
        self._openings.clear()
        self._ahead.stop()
        self._users.clear()
        unsent = len(self._waiting)
        self._waiting.clear()
        due_by_now = self._held.due_before(self._stop)
        unsent += due_by_now
        self.revoked += len(self._held) - due_by_now
        self._held.clear()
        self.unsent += unsent + self._end_unwritten(self.client.revoke_unwritten())
        self._cut_sessions()

    def _end_unwritten(self, unwritten: Sequence[Request]) -> int:
        """End the credits of requests that were not written. Returns how many of them were due."""
        self._active -= len(unwritten)
        if self._is_open_loop:
            self.connecting += len(unwritten)
            return len(unwritten)
        # Those of conversations that have sent a turn are cut by the stop.
        begun = sum(request.turn > 0 for request in unwritten)
        self.cancelled += begun
        self.revoked += len(unwritten) - begun
        return 0

    def _cut_sessions(self) -> None:
        """End the conversations that are between two turns, as cut by the stop."""
        sessions = sum(session is not None for _, _, session in self._later)
        self._later.clear()
        self._active -= sessions
        self.cancelled += sessions

    def _cancel_all(self) -> None:
        self.client.cancel_in_flight("cut by the end of the grace period")

    def _arm(self) -> None:
        """Set the timer to the next due time."""
        wake = NEVER
        if not self._is_paused:
            wake = self._stop
            if self._later and self._later[0][0] < wake:
                wake = self._later[0][0]
            if self._openings and self._openings[0] < wake:
                wake = self._openings[0]
            # Also at the limit: requests that become due then wait for the cap, and are counted as
            # capped.
            if self._due and (self._active >= self._limit or self._find(self._credits[0])):
                wake = min(wake, self._due[0])
        elif not self._is_stopped:
            wake = self._stop
        elif self._active:
            wake = self._cancel
        else:
            self.client.poll_often(False)
        if self._abandonments is not None and self._active:
            wake = min(wake, self._abandonments.next_wall_ns or NEVER)
        self.client.wake_at(None if wake == NEVER else wake)


def _marking(send: Callable[[Request], object], markers: RunMarkers) -> Callable[[Request], object]:
    """Return a `send` that puts a request's marker into it first."""

    def send_marked(request: Request) -> object:
        request.payload = markers.marked(
            request.payload, request.phase, request.index, request.turn
        )
        return send(request)

    return send_marked
