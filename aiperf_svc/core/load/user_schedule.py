"""The schedule of users who each take a turn once a gap, on a clock of their own.

With N users at R requests a second a user's turns are N / R apart, and the users 1 / R from each
other, so that the load has the rate R from its start on. A user has one conversation after the
other: the next one begins one gap after the last turn of the previous one was due, whether that one
has ended or not. Within a conversation a turn is due one gap after the turn before, or when the
response to that has ended, if that is later (`services.load_generator`).

The load begins as one that has long been going on: the users are in the middle of their
conversations, evenly from the last turn to the first, and those that follow each other are far
apart in age. What a server has in its caches then is that of a steady state from the first second
on. A user's first conversation therefore has only the turns that are left of it. This is the
arrangement of AIPerf's user-centric rate, after LMBenchmark's multi-round test.
"""

from heapq import heapify, heapreplace
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Turns = NDArray[np.uint16]


class FirstTurns(NamedTuple):
    """What is left of a user's first conversation."""

    order: int
    """Place of the user among all, by the time of the first turn."""
    turns: int
    """0: all of them."""


def first_turns(users: int, conversation_turns: int) -> list[FirstTurns]:
    """Return what is left of each user's first conversation, in the order of their first turns;
    conversations have so many turns on average."""
    # The first turn of a conversation is age 0, the last one this age.
    oldest = max(1, conversation_turns - 1)
    step = 0
    if gcd(users, oldest) > 1:
        # Ages would repeat: walk through the places with another step.
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
        """`turns` are those of each dataset entry, of which conversations take one after the other;
        empty if all have one turn."""
        self._turns = turns if len(turns) else np.ones(1, dtype=np.uint16)
        self._gap_ns = users / rate * 1e9
        average = round(float(self._turns.mean()))
        self.first = [each.turns for each in first_turns(users, average)]
        """Turns of the first conversations, by index; 0: all. Further ones have all."""
        self._begin: list[tuple[float, int]] = [(n / rate * 1e9, n) for n in range(users)]
        """Heap of when each user's next conversation begins."""
        heapify(self._begin)
        self._taken = 0

    def turns_of(self, index: int) -> int:
        whole = int(self._turns[index % len(self._turns)])
        left = self.first[index] if index < len(self.first) else 0
        return min(left or whole, whole)

    def take(self, *, before_ns: int, at_most: int | None = None) -> Times:
        """Return the next times before `before_ns`, `at_most` of them."""
        found: list[int] = []
        while self._begin[0][0] < before_ns and (at_most is None or len(found) < at_most):
            at_ns, user = self._begin[0]
            found.append(round(at_ns))
            then_ns = at_ns + self.turns_of(self._taken) * self._gap_ns
            heapreplace(self._begin, (then_ns, user))
            self._taken += 1
        return np.array(found, dtype=np.int64)
