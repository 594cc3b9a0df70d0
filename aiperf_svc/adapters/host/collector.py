"""The garbage collector while a command is imported.

Imports make tens of thousands of objects that stay. With the usual threshold the collector searches
them more than a hundred times, which is an eighth of the CPU time of a short command.
"""

import gc
from typing import Any

IMPORTED = 150_000
"""More objects than a command makes by its imports: a local run makes 60,000, all services together
make 110,000."""

_usual = gc.get_threshold()


def hold_back_collector() -> None:
    """Collect no garbage before there are more new objects than imports make."""
    gc.set_threshold(IMPORTED, *_usual[1:])
    gc.callbacks.append(_collected)


def resume_collector() -> None:
    """Collect garbage as usual from now on, but for what there is."""
    if _collected in gc.callbacks:
        gc.callbacks.remove(_collected)
        gc.freeze()
        gc.set_threshold(*_usual)


def _collected(phase: str, _info: dict[str, Any]) -> None:
    if phase == "stop":
        resume_collector()
