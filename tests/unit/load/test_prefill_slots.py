"""Slots of requests that wait for their first token."""

import random

import pytest

from aiperf_svc.core.load.ramp import PrefillSlots, opening_times


def slots(count: int) -> PrefillSlots:
    made = PrefillSlots([0] * count)
    made.open(0)
    return made


def test_slot_is_released_exactly_once() -> None:
    made = slots(2)
    made.take("a")
    made.take("b")
    assert (made.has_free, made.free) == (False, 0)
    assert made.give_back("a")
    assert not made.give_back("a")  # its end, after its first token
    assert (made.has_free, made.free) == (True, 1)
    assert made.holds("b")
    assert not made.holds("a")


def test_taking_an_occupied_slot_raises() -> None:
    made = slots(1)
    made.take("a")
    with pytest.raises(AssertionError, match="only if a slot is free"):
        made.take("b")


def test_unlimited_slots_are_always_free() -> None:
    made = PrefillSlots(None)
    for request in range(1_000):
        made.take(request)
    assert (made.has_free, made.free, made.is_ramping) == (True, None, False)
    assert made.give_back(7)


def test_slots_open_one_by_one_over_ramp() -> None:
    times = opening_times(count=4, rank=0, workers=1, start_ns=100, ramp_ns=40)
    made = PrefillSlots(times)
    opened = []
    for now in (99, 100, 109, 110, 125, 130, 500):
        made.open(now)
        opened.append(made.free)
    assert opened == [0, 1, 1, 2, 3, 4, 4]
    assert not made.is_ramping


def test_random_histories_never_exceed_the_slots() -> None:
    dice = random.Random(5)
    made, waiting_for_token, decoding = slots(5), set[int](), set[int]()
    for request in range(5_000):
        if made.has_free:
            made.take(request)
            waiting_for_token.add(request)
        event, chosen = dice.random(), None
        if event < 0.4 and waiting_for_token:
            chosen = dice.choice(sorted(waiting_for_token))
            waiting_for_token.remove(chosen)
            decoding.add(chosen)
            assert made.give_back(chosen)
        elif event < 0.5 and waiting_for_token:  # fails without a token
            chosen = dice.choice(sorted(waiting_for_token))
            waiting_for_token.remove(chosen)
            assert made.give_back(chosen)
        elif decoding:
            assert not made.give_back(decoding.pop())
        assert len(waiting_for_token) <= 5
        assert made.free == 5 - len(waiting_for_token)
