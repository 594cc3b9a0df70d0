"""The dataset files that configs name, each checked once before anything is started."""

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.foreign_text import one_line

if TYPE_CHECKING:
    from aiperf_svc.adapters.datasets.checks import CheckedFile
    from aiperf_svc.adapters.datasets.files import Watch

_REST_OF_LINE = "\x1b[K"
"""Code that clears a terminal's line from here on."""
SHOWN_EVERY_S = 0.5
"""Time between two looks at how far a file has been read; a short one is read before the first."""


class CheckedFiles:
    """The dataset files of several configs, each read once."""

    def __init__(self, configs: Iterable[BenchmarkConfig]) -> None:
        """Raises DatasetError that names file and line."""
        self._files: dict[str, CheckedFile] = {}
        for config in configs:
            if _has_files(config) and _key(config) not in self._files:
                # Not above: it imports numpy, and most runs have nothing to read.
                from aiperf_svc.adapters.datasets.checks import check_dataset

                with shown_reading(str(config.dataset.file)) as watch:
                    self._files[_key(config)] = check_dataset(config, watch)

    @property
    def notices(self) -> list[str]:
        """What the user should know of the files."""
        return [found.notice for found in self._files.values() if found.notice]

    def replay_ns(self, config: BenchmarkConfig) -> int | None:
        """Return how long a config's fixed schedule is, in whole seconds; None if that is
        unknown."""
        found = self._files.get(_key(config))
        if found is None or found.replay_ns is None:
            return None
        return math.ceil(found.replay_ns / config.load.replay_speedup / SECOND_NS) * SECOND_NS


@contextmanager
def shown_reading(name: str) -> Iterator["Watch"]:
    """Show on a terminal how much of a file has been read, in a line that goes when it is done."""
    shown_s = monotonic() if sys.stderr is not None and sys.stderr.isatty() else math.inf
    is_shown = False

    def watch(share: float) -> None:
        nonlocal shown_s, is_shown
        if monotonic() - shown_s >= SHOWN_EVERY_S:
            shown_s, is_shown = monotonic(), True
            text = one_line(f"reading {name}: {share:.0%}")
            print(f"\r{text}{_REST_OF_LINE}", end="", file=sys.stderr, flush=True)

    try:
        yield watch
    finally:
        if is_shown:
            print(f"\r{_REST_OF_LINE}", end="", file=sys.stderr, flush=True)


def _has_files(config: BenchmarkConfig) -> bool:
    """Return whether there is something to read, or pictures and sounds whose size is checked."""
    dataset = config.dataset
    return bool(dataset.file or dataset.images.number or dataset.sounds.number)


def _key(config: BenchmarkConfig) -> str:
    """Return what the content of a dataset depends on, without the speed."""
    at_own_speed = config.load.model_copy(update={"replay_speedup": 1.0})
    return config.model_copy(update={"load": at_own_speed}).model_dump_json(
        include={"dataset", "load", "endpoint"}
    )
