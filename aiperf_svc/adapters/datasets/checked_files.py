"""The dataset files that configs name, each checked once before anything is started."""

import math
from collections.abc import Iterable

import msgspec

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load import Load


class CheckedFile(msgspec.Struct, frozen=True):
    """A dataset file that has been read."""

    notice: str = ""
    """What the user should know of it."""
    replay_ns: int | None = None
    """Length of a fixed schedule without a speedup; None: there is none, or it is longer than what
    was read."""


class CheckedFiles:
    """The dataset files of several configs, each read once."""

    def __init__(self, configs: Iterable[BenchmarkConfig]) -> None:
        """Raises DatasetError that names file and line."""
        self._files: dict[str, CheckedFile] = {}
        for config in configs:
            if _key(config) not in self._files:
                self._files[_key(config)] = _checked(config)

    @property
    def notices(self) -> list[str]:
        """What the user should know of the files."""
        return [found.notice for found in self._files.values() if found.notice]

    def replay_ns(self, config: BenchmarkConfig) -> int | None:
        """Return how long a config's fixed schedule is, in whole seconds; None if that is
        unknown."""
        length_ns = self._files[_key(config)].replay_ns
        if length_ns is None:
            return None
        return math.ceil(length_ns / config.load.replay_speedup / SECOND_NS) * SECOND_NS


def _key(config: BenchmarkConfig) -> str:
    """Return what the content of a dataset depends on, without the speed."""
    return config.model_copy(update={"load": at_own_speed(config.load)}).model_dump_json(
        include={"dataset", "load", "endpoint"}
    )


def at_own_speed(load: Load) -> Load:
    """Return the load of a replay as its file has it."""
    return load.model_copy(update={"replay_speedup": 1.0})


def _checked(config: BenchmarkConfig) -> CheckedFile:
    dataset = config.dataset
    if dataset.file is None and not dataset.images.number and not dataset.sounds.number:
        return CheckedFile()
    # Not above: it imports numpy, and most runs have nothing to read.
    from aiperf_svc.adapters.datasets.checks import check_dataset

    return check_dataset(config)
