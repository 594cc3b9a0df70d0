"""Sends the requests of session trees: a credit is permission to run one whole tree.

One worker runs all of a tree, so it decides about spawns and joins without messages. Workers share
the load by trees: each user has one at a time, and is free for the next one when the root and all
its descendants have ended. `core.load.session_tree` decides the order of requests,
`core.load.idle_caps` holds requests until they are due.

If a load starts inside its trees, the first tree of each user starts at a position derived from the
seed and the credit's index. The warmup has the same credits as the start of the measurement. It
fills the server's cache with the last request of each open stream, with one output token each.
"""

import heapq
from collections.abc import Sequence
from time import time_ns
from typing import Any

from aiperf_svc.adapters.inference.entry_cache import Entry, TreeEntry
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.config.load_shapes import Agentic
from aiperf_svc.core.endpoints.history import Defect
from aiperf_svc.core.load.idle_caps import PendingRequests
from aiperf_svc.core.load.session_tree import (
    EndTree,
    FirstTrees,
    Instruction,
    Position,
    RequestEnded,
    ScheduleRequest,
    SessionTree,
    TreeStarted,
    TreeStopped,
)
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.domain.request_ids import INDEX_BASE, id_prefix, turn_prefix
from aiperf_svc.protocol.messages.credits import PhaseOpened
from aiperf_svc.protocol.messages.dataset import Turn
from aiperf_svc.protocol.records import Flag
from aiperf_svc.services.load_generator import CONNECT_BACKOFF_NS, NEVER, LoadGenerator
from aiperf_svc.services.sessions import Session

_COMPLETED, _CANCELLED, _ERRORED = (
    int(Outcome.COMPLETED),
    int(Outcome.CANCELLED),
    int(Outcome.ERRORED),
)
_LAST_TURN, _CAPPED = int(Flag.LAST_TURN), int(Flag.CAPPED)


class RunningTree:
    """A session tree in progress: the session of all its requests."""

    __slots__ = (
        "entry", "flags", "index", "issued", "machine", "numbers", "outcome", "responses", "target",
    )  # fmt: skip

    def __init__(
        self, index: int, entry: TreeEntry, machine: SessionTree, numbers: Sequence[int] | None
    ) -> None:
        """`numbers` are the numbers of a warmup's requests in the entry; None for all requests."""
        self.index = index
        self.entry = entry
        self.machine = machine
        self.numbers = numbers
        self.flags = 0
        self.outcome = _COMPLETED
        self.responses: dict[int, bytes] = {}
        """Live responses that later prompts contain, with the results of the tools that they call,
        by their positions in the entry."""
        self.issued: dict[int, bytes] = {}
        """Header that the target issued for each stream."""
        self.target = -1
        """Index of its target, if there are several; -1 before its first request."""

    def place_of(self, request: Request) -> int:
        """Return the number of a request in the machine."""
        return request.turn if self.numbers is None else self.numbers.index(request.turn)


_TICK: Any = Session.__new__(Session)
"""Marker in the heap of later work for the next request of the trees."""


class TreeGenerator(LoadGenerator):
    """A load whose credits are session trees."""

    def __init__(
        self, *, agentic: Agentic | None, seed: int, max_delay_ns: int | None, **options: Any
    ) -> None:
        """`max_delay_ns` limits the pause before a request; `given` are common arguments."""
        self._agentic, self._max_delay_ns = agentic, max_delay_ns
        self._first_trees = FirstTrees(agentic, seed) if agentic is not None else None
        super().__init__(**options)

    def _reset(self, phase: Phase) -> None:
        super()._reset(phase)
        agentic = self._agentic
        self._pending = PendingRequests(
            system_cap_ns=agentic.system_idle_cap if agentic else None,
            tree_cap_ns=agentic.trajectory_idle_cap if agentic else None,
        )
        self._trees: dict[int, RunningTree] = {}
        self._ticks_at = NEVER
        """Time of the earliest tick in the heap of later work."""
        self._first_indexes = 0
        """Indexes below this one are the users' first trees."""
        # A stream keeps its id from the warmup on, and therefore its server behind a router.
        self._session_prefix = id_prefix(self._run_id, Phase.PROFILING).encode()

    def open_phase(self, message: PhaseOpened, offset_ns: int) -> None:
        super().open_phase(message, offset_ns)
        self._first_indexes = message.concurrency

    # --- called by the client --------------------------------------------------------------------

    def on_end(self, request: Request, outcome: int) -> None:
        """Handle the end of a request: schedule the requests that waited, or end its tree."""
        tree: RunningTree = request.session
        end = request.end_wall_ns
        self._pending.end_request(tree.index, end)
        is_completed = outcome == _COMPLETED
        if is_completed and self._issuing_header is not None:
            stream = tree.entry.plans[request.turn].stream
            tree.issued[stream] = self._issued(request) or tree.issued.get(stream, b"")
        if is_completed and request.turn in tree.entry.live:
            is_completed = self._keep_response(tree, request)
        if not is_completed and tree.outcome in (_COMPLETED, _CANCELLED):
            tree.outcome = _ERRORED if outcome == _COMPLETED else outcome
        instructions = tree.machine.handle(RequestEnded(tree.place_of(request), end, is_completed))
        has_ended = any(isinstance(each, EndTree) for each in instructions)
        self.turns_completed += is_completed and not has_ended
        pause = CONNECT_BACKOFF_NS if outcome == _ERRORED and not request.was_written else 0
        self._carry_out(tree, instructions, end + pause)
        if is_completed and not self._is_stopped:
            self._run_due(time_ns())
        else:
            self._arm()

    def _keep_response(self, tree: RunningTree, request: Request) -> bool:
        """Keep a response for later prompts. Returns whether it is a valid response."""
        entry, defects = tree.entry, set[Defect]()
        places = entry.live[request.turn]
        live = (entry.conversation.live[place] for place in places)
        following = [Turn(b"", tool_results=each.tool_results) for each in live]
        try:
            added = self._to_history(Turn(b""), following, request)
        except Exception:
            # The bytes are not a response. The record has the error.
            return False
        for place, (found, of_this) in zip(places, added, strict=True):
            defects.update(of_this)
            # In the pieces of a prompt, a comma precedes each message but the first.
            tree.responses[place] = b"".join(b"," + each for each in found)
        self.count_defects(tuple(defects))
        return True

    # --- sending ---------------------------------------------------------------------------------

    def _begin(self, entry: Entry, index: int, due: int, flags: int) -> None:
        assert isinstance(entry, TreeEntry)
        self._active += 1
        position, numbers, plans = Position(), None, entry.plans
        if self._first_trees is not None and index < self._first_indexes:
            if self.phase == Phase.WARMUP:
                numbers, made = self._first_trees.warmup(index, plans)
                plans = tuple(made)
            else:
                position = self._first_trees.position(index, plans)
        machine = SessionTree(plans, limit=self._turns.get(index, 0))
        tree = self._trees[index] = RunningTree(index, entry, machine, numbers)
        tree.flags = flags
        self._pending.begin(index, due)
        instructions = machine.handle(TreeStarted(due, position, self._max_delay_ns))
        if position.done and self._agentic is not None and self._agentic.burst:
            instructions = _shifted_to(instructions, due)
        self._carry_out(tree, instructions, due)

    def _carry_out(self, tree: RunningTree, instructions: list[Instruction], now: int) -> None:
        """Carry out the instructions; a user is free from `now` on if its tree ends."""
        for instruction in instructions:
            match instruction:
                case ScheduleRequest(number=number, due_ns=due):
                    self._pending.add(tree.index, number, due)
                    self._longest_pause_ns = max(self._longest_pause_ns, due - now)
                case EndTree(is_complete=is_complete):
                    self._end(tree, is_complete=is_complete, at_ns=now)
        self._pending.apply_caps(tree.index)
        self._tick()

    def _end(self, tree: RunningTree, *, is_complete: bool, at_ns: int) -> None:
        del self._trees[tree.index]
        self._pending.end(tree.index)
        self._active -= 1
        if is_complete:
            self.completed += 1
        elif tree.outcome in (_COMPLETED, _CANCELLED):
            self.cancelled += 1
        else:
            self.errored += 1
        if self._is_stopped:
            return
        heapq.heappush(self._later, (at_ns, next(self._order), None))
        if not self._held and not self._is_open_loop:
            self._on_starved()

    def _tick(self) -> None:
        """Schedule a tick for the next request of the trees."""
        due = self._pending.next_due_ns
        if due < self._ticks_at and not self._is_stopped:
            self._ticks_at = due
            heapq.heappush(self._later, (due, next(self._order), _TICK))

    def _send_turn(self, session: Session, due: int) -> None:
        """Send the due requests of all trees. Called for a tick."""
        if due != self._ticks_at:
            return  # the caps have moved its request
        self._ticks_at = NEVER
        while (request := self._pending.take_due(due)) is not None:
            self._send_request(self._trees[request.tree], request.number, request.due_ns)
        self._tick()

    def _send_request(self, tree: RunningTree, place: int, due: int) -> None:
        is_last = not tree.machine.has_more and not self._pending.has_waiting(tree.index)
        number = place if tree.numbers is None else tree.numbers[place]
        entry = tree.entry
        stream = entry.plans[number].stream
        parent = entry.conversation.streams[stream].parent
        prepared = entry.prepare_request(
            number,
            tree.responses,
            self._session_id(tree, stream),
            self._session_id(tree, parent) if parent >= 0 else b"",
            issued=tree.issued.get(stream, b""),
            is_one_token=tree.numbers is not None,
        )
        prefix = turn_prefix(self._id_prefix, number)
        flags = self._base_flags | tree.flags | (_LAST_TURN if is_last else 0)
        tree.flags &= ~_CAPPED  # only the first request waited
        is_kept = number in entry.live or self._issuing_header is not None
        kept = bytearray() if is_kept else None
        self._send(Request(prepared, prefix, self.phase, tree.index, due, flags, tree, kept))

    def _session_id(self, tree: RunningTree, stream: int) -> bytes:
        prefix = turn_prefix(self._session_prefix, tree.entry.first_of_stream[stream])
        return b"%b%d" % (prefix, INDEX_BASE + tree.index)

    # --- stopping --------------------------------------------------------------------------------

    def _end_unwritten(self, unwritten: Sequence[Request]) -> int:
        for request in unwritten:
            tree: RunningTree = request.session
            self._pending.end_request(tree.index, request.due_wall_ns)
            tree.outcome = _CANCELLED if tree.outcome == _COMPLETED else tree.outcome
            number, due = tree.place_of(request), request.due_wall_ns
            ended = RequestEnded(number, due, is_completed=False)
            self._carry_out(tree, tree.machine.handle(ended), due)
        return 0

    def _cut_sessions(self) -> None:
        """End the trees between two requests. Others end with their requests in flight."""
        self._later.clear()
        for index, unsent in self._pending.clear().items():
            tree = self._trees[index]
            self._carry_out(tree, tree.machine.handle(TreeStopped(unsent)), self._stop)


def _shifted_to(instructions: list[Instruction], due: int) -> list[Instruction]:
    """Return the instructions with the first request at `due` and the others at their previous
    distances from it."""
    times = [each.due_ns for each in instructions if isinstance(each, ScheduleRequest)]
    early = min(times, default=due) - due
    return [
        ScheduleRequest(each.number, each.due_ns - early)
        if isinstance(each, ScheduleRequest)
        else each
        for each in instructions
    ]
