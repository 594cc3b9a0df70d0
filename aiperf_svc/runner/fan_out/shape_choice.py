"""Which shape of an experiment an index of a Job runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.workloads.registry import load_benchmark
from aiperf_svc.workloads.shapes import Shape, index_shapes


class ChosenShape(NamedTuple):
    """A shape, and the experiment that it is of."""

    config: BenchmarkConfig
    number: int
    shape: Shape

    @property
    def configs(self) -> tuple[BenchmarkConfig, ...]:
        """The config of each trial."""
        return tuple(filter(None, (each.inference for each in self.shape.configs)))


def choose_shape(environ: Mapping[str, str]) -> ChosenShape:
    """Return the shape that the environment of an index names. Raises ConfigError,
    EnvironmentProblem."""
    try:
        numbers = [int(each) for each in environ["AIPERF_SHAPES"].split(",")]
        number = numbers[int(environ["JOB_COMPLETION_INDEX"])]
        config = load_benchmark(Path(environ["AIPERF_CONFIG"])).inference
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; an index is run only in a pod of a Job"
        ) from error
    assert config is not None
    return ChosenShape(config, number, index_shapes(config)[number - 1])
