"""The credits that a worker holds, as ranges of indexes, so memory does not grow with their
number.

The sending loop needs the next index at the cost of a `popleft`. So the next few credits are
unpacked into plain deques. All others stay as granted: a range and, in open loop, an array of due
times.
"""

from array import array
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

UNPACKED: Final = 1_024
"""Number of credits unpacked at once."""

Times = NDArray[np.int64]
_NO_TIMES: Final[NDArray[Any]] = np.empty(0, dtype=np.int64)


class CreditQueue:
    """Queue of credits in the order of granting."""

    def __init__(self, *, is_held: bool = False) -> None:
        """Make an empty queue; with `is_held`, in the state after `hold`."""
        self.next: deque[int] = deque()
        """Indexes of the next credits. May be empty while packed ones remain; `unpack` refills
        it."""
        self.next_due: deque[int] = deque()
        """Due times of those credits; open loop only."""
        self._stride = 1
        """Difference between two neighbouring indexes."""
        self._packed: deque[tuple[range, Times]] = deque()
        self._is_held = is_held

    def __len__(self) -> int:
        return len(self.next) + sum(len(indexes) for indexes, _ in self._packed)

    def __bool__(self) -> bool:
        return bool(self.next or self._packed)

    def add(self, indexes: range, due: Times = _NO_TIMES) -> None:
        """Add a grant, in open loop with the due times of its credits."""
        if indexes:
            self._packed.append((indexes, due))
            self.unpack()

    def unpack(self) -> bool:
        """Fill `next` if it is empty. Returns whether there is a next credit."""
        if self.next:
            return True
        if self._is_held or not self._packed:
            return False
        indexes, due = self._packed.popleft()
        self.next.extend(indexes[:UNPACKED])
        self.next_due.extend(due[:UNPACKED].tolist())
        self._stride = indexes.step
        if len(indexes) > UNPACKED:
            self._packed.appendleft((indexes[UNPACKED:], due[UNPACKED:]))
        return True

    def hold(self) -> None:
        """Provide no credits until `release`."""
        self._is_held = True
        if self.next:
            indexes = range(self.next[0], self.next[-1] + 1, self._stride)
            self._packed.appendleft((indexes, np.array(self.next_due, dtype=np.int64)))
            self.next.clear()
            self.next_due.clear()

    def release(self) -> None:
        """Provide credits again."""
        self._is_held = False
        self.unpack()

    def due_before(self, wall_ns: int) -> int:
        """Return the number of credits due before a time; open loop only."""
        packed = sum(int(np.count_nonzero(due < wall_ns)) for _, due in self._packed)
        return packed + sum(due < wall_ns for due in self.next_due)

    def clear(self) -> None:
        """Remove all credits."""
        self.next.clear()
        self.next_due.clear()
        self._packed.clear()


class PackedPairs:
    """A queue of pairs of 64-bit integers, at 16 bytes each."""

    def __init__(self) -> None:
        self._added = array("q")
        self._taken = array("q")
        self._at = 0
        """Position of the next pair in `_taken`."""

    def __len__(self) -> int:
        return (len(self._added) + len(self._taken) - self._at) // 2

    def append(self, pair: tuple[int, int]) -> None:
        self._added.extend(pair)

    def first(self) -> tuple[int, int]:
        """Return the pair that has waited longest. Raises IndexError if there is none."""
        if self._at == len(self._taken):
            self._taken, self._added, self._at = self._added, array("q"), 0
        return self._taken[self._at], self._taken[self._at + 1]

    def popleft(self) -> tuple[int, int]:
        """Remove and return the pair that has waited longest. Raises IndexError if there is
        none."""
        pair = self.first()
        self._at += 2
        return pair

    def clear(self) -> None:
        self._added, self._taken, self._at = array("q"), array("q"), 0
