"""The requests of session trees that wait for their time, and the caps on idle time.

Recorded pauses can be hours: the user went to lunch. A cap prevents them from filling a benchmark
with idle time. While nothing of a tree is in flight, its waiting requests are moved to earlier
times by the same amount, so that the next one is due within the cap of the tree's last event. The
same applies to all trees together. Relative pauses stay as recorded, and a pause is not shortened
while anything in that scope is in flight.
"""

import heapq
from itertools import count

import msgspec

NEVER = 2**62


class DueRequest(msgspec.Struct, frozen=True):
    """A request that is due."""

    tree: int
    number: int
    due_ns: int


class _Tree:
    __slots__ = ("idle_since_ns", "in_flight", "waiting")

    def __init__(self, now_ns: int) -> None:
        self.in_flight = 0
        self.idle_since_ns = now_ns
        self.waiting: dict[int, int] = {}
        """Due times by request."""


class PendingRequests:
    """The waiting requests of all session trees of a worker."""

    def __init__(self, *, system_cap_ns: int | None = None, tree_cap_ns: int | None = None) -> None:
        """The caps are the maximum idle times of all trees together and of one; None: no cap."""
        self._system_cap_ns = system_cap_ns
        self._tree_cap_ns = tree_cap_ns
        self._trees: dict[int, _Tree] = {}
        self._heap: list[tuple[int, int, int, int]] = []
        """(due, order, tree, number); an entry that does not match `waiting` is outdated."""
        self._order = count()
        self._in_flight = 0
        self._idle_since_ns = 0

    def begin(self, tree: int, now_ns: int) -> None:
        self._trees[tree] = _Tree(now_ns)

    def add(self, tree: int, number: int, due_ns: int) -> None:
        self._trees[tree].waiting[number] = due_ns
        heapq.heappush(self._heap, (due_ns, next(self._order), tree, number))

    def end_request(self, tree: int, at_ns: int) -> None:
        """Record that a request of a tree is no longer in flight."""
        each = self._trees[tree]
        each.in_flight -= 1
        self._in_flight -= 1
        each.idle_since_ns = max(each.idle_since_ns, at_ns)
        self._idle_since_ns = max(self._idle_since_ns, at_ns)

    def end(self, tree: int) -> None:
        del self._trees[tree]

    def clear(self) -> dict[int, tuple[int, ...]]:
        """Remove all waiting requests, and return those of each tree."""
        self._heap.clear()
        found = {key: tuple(tree.waiting) for key, tree in self._trees.items()}
        for tree in self._trees.values():
            tree.waiting.clear()
        return found

    def has_waiting(self, tree: int) -> bool:
        return bool(self._trees[tree].waiting)

    def apply_caps(self, tree: int) -> None:
        """Move the waiting requests of a tree, and of all trees, to earlier times while nothing is
        in flight. Call this after adding the requests that follow from an event."""
        each = self._trees.get(tree)
        if self._tree_cap_ns is not None and each is not None and not each.in_flight:
            self._move({tree: each}, each.idle_since_ns + self._tree_cap_ns)
        if self._system_cap_ns is not None and not self._in_flight:
            since_ns = max(
                [self._idle_since_ns, *(each.idle_since_ns for each in self._trees.values())]
            )
            self._move(self._trees, since_ns + self._system_cap_ns)

    def _move(self, trees: dict[int, _Tree], latest_ns: int) -> None:
        """Move waiting requests so that the first one is due by a time."""
        first_ns = min((due for tree in trees.values() for due in tree.waiting.values()), default=0)
        excess_ns = first_ns - latest_ns
        if excess_ns <= 0:
            return
        for key, tree in trees.items():
            for number, due_ns in tree.waiting.items():
                self.add(key, number, due_ns - excess_ns)

    @property
    def next_due_ns(self) -> int:
        """Time of the next request; `NEVER` if none waits."""
        heap = self._heap
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER

    def take_due(self, now_ns: int) -> DueRequest | None:
        """Return the next request that is due by now and count it as in flight; None if there is
        none."""
        if self.next_due_ns > now_ns:
            return None
        due_ns, _, key, number = heapq.heappop(self._heap)
        tree = self._trees[key]
        del tree.waiting[number]
        tree.in_flight += 1
        self._in_flight += 1
        return DueRequest(key, number, due_ns)

    def _is_current(self, entry: tuple[int, int, int, int]) -> bool:
        due_ns, _, key, number = entry
        tree = self._trees.get(key)
        return tree is not None and tree.waiting.get(number) == due_ns
