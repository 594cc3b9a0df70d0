"""Tasks with the lifetime of a block."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

_T = TypeVar("_T")


class Tasks:
    """Tasks that are cancelled and awaited at the end of a block. Unlike those of a TaskGroup they
    may fail; callers get errors from the task itself."""

    def __init__(self) -> None:
        self._all: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, _T], name: str) -> "asyncio.Task[_T]":
        task = asyncio.create_task(work, name=name)
        self._all.append(task)
        return task

    async def first(self, timeout_s: float | None = None) -> "set[asyncio.Task[Any]]":
        """Wait until a task has ended or the timeout. Return the tasks that have ended."""
        first = asyncio.FIRST_COMPLETED
        return (await asyncio.wait(self._all, timeout=timeout_s, return_when=first))[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(*self._all)


async def cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
