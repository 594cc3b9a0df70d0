"""A client that has seen one change can wait for the next."""

import asyncio

from aiperf_svc.services.base_progress import StatusChanges


async def test_earlier_change_is_returned_at_once() -> None:
    changes = StatusChanges()
    seen = changes.number
    changes.note()
    async with asyncio.timeout(10):
        await changes.wait(seen, timeout_s=60.0)


async def test_next_change_wakes_all_waiters() -> None:
    changes = StatusChanges()
    waiting = [asyncio.create_task(changes.wait(changes.number, timeout_s=60.0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    changes.note()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)


async def test_wait_without_a_change_times_out() -> None:
    changes = StatusChanges()
    seen = changes.number
    async with asyncio.timeout(10):
        await changes.wait(seen, timeout_s=0.001)
    assert changes.number == seen
