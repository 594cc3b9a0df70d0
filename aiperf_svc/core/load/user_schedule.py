"""The schedule of users who each take a turn per gap, on their own clocks.

With N users at R requests per second, a user's turns are N / R apart, and the users are 1 / R
apart, so the load has the rate R from its start. A user has one conversation after the other: the
next one begins one gap after the last turn of the previous one was due, whether that turn has ended
or not. Within a conversation a turn is due one gap after the previous turn, or when its response
has ended, if that is later (`services.load_generator`).

The load starts in a steady state: the users are in the middle of their conversations, evenly from
the last turn to the first, and consecutive users are far apart in age. So a server's caches have
their steady-state content from the first second. A user's first conversation therefore only has its
remaining turns. This is the arrangement of AIPerf's user-centric rate, after LMBenchmark's
multi-round test.
"""

from heapq import heapify, heapreplace
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Turns = NDArray[np.uint16]


class FirstTurns(NamedTuple):
    """The remainder of a user's first conversation."""

    order: int
    """Position of the user among all, by the time of the first turn."""
    turns: int
    """0: all of them."""


def first_turns(users: int, conversation_turns: int) -> list[FirstTurns]:
    """Return the remainder of each user's first conversation, in the order of their first turns.
    Conversations have `conversation_turns` turns on average."""
    # The first turn of a conversation is age 0, the last one this age.
    oldest = max(1, conversation_turns - 1)
    step = 0
    if gcd(users, oldest) > 1:
        # Ages would repeat, so step through the positions with another stride.
        step = next((each for each in range(2, users) if gcd(users, each) == 1), 1)
    found = [FirstTurns(0, 0)]
    for number in range(1, users):
        age, place = divmod((users - number) * oldest, users)
        if step:
            place = number * step % users
        found.append(FirstTurns(users - place, oldest - age))
    return sorted(found)


class UserSchedule:
    """The times at which conversations begin, in order, as nanoseconds from the phase's start."""

    def __init__(self, *, users: int, rate: float, turns: Turns) -> None:
        """`turns` are those of each dataset entry, which conversations use in order; empty if all
        entries have one turn."""
        self._turns = turns if len(turns) else np.ones(1, dtype=np.uint16)
        self._gap_ns = users / rate * 1e9
        average = round(float(self._turns.mean()))
        self.first = [each.turns for each in first_turns(users, average)]
        """Turns of the first conversations, by index; 0: all. Later ones have all turns."""
        self._begin: list[tuple[float, int]] = [(n / rate * 1e9, n) for n in range(users)]
        """Heap of when each user's next conversation begins."""
        heapify(self._begin)
        self._taken = 0

    def turns_of(self, index: int) -> int:
        whole = int(self._turns[index % len(self._turns)])
        remaining = self.first[index] if index < len(self.first) else 0
        return min(remaining or whole, whole)

    def take(self, *, before_ns: int, at_most: int | None = None) -> Times:
        """Return the next times before `before_ns`, at most `at_most` of them."""
        found: list[int] = []
        while self._begin[0][0] < before_ns and (at_most is None or len(found) < at_most):
            at_ns, user = self._begin[0]
            found.append(round(at_ns))
            then_ns = at_ns + self.turns_of(self._taken) * self._gap_ns
            heapreplace(self._begin, (then_ns, user))
            self._taken += 1
        return np.array(found, dtype=np.int64)
