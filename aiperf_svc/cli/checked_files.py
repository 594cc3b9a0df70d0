"""The dataset files that configs name, each checked once before anything is started."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig

if TYPE_CHECKING:
    from aiperf_svc.adapters.datasets.checks import CheckedFile


class CheckedFiles:
    """The dataset files of several configs, each read once."""

    def __init__(self, configs: Iterable[BenchmarkConfig]) -> None:
        """Raises DatasetError that names file and line."""
        self._files: dict[str, CheckedFile] = {}
        for config in configs:
            if _has_files(config) and _key(config) not in self._files:
                # Not above: it imports numpy, and most runs have nothing to read.
                from aiperf_svc.adapters.datasets.checks import check_dataset

                self._files[_key(config)] = check_dataset(config)

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
