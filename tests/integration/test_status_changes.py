"""Who has seen a change can wait for the next one."""

import asyncio

from aiperf_svc.services.base_progress import StatusChanges


async def test_change_that_came_already_is_not_waited_for() -> None:
    changes = StatusChanges()
    seen = changes.number
    changes.note()
    async with asyncio.timeout(10):
        await changes.wait(seen, timeout_s=60.0)


async def test_all_who_wait_are_woken_by_the_next_change() -> None:
    changes = StatusChanges()
    waiting = [asyncio.create_task(changes.wait(changes.number, timeout_s=60.0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    changes.note()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)


async def test_a_wait_without_a_change_has_an_end() -> None:
    changes = StatusChanges()
    seen = changes.number
    async with asyncio.timeout(10):
        await changes.wait(seen, timeout_s=0.001)
    assert changes.number == seen
