"""Which shape of an experiment an index of a Job runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aiperf_svc.any_kind.loading import load_any
from aiperf_svc.any_kind.shapes import Shape, index_shapes
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import EnvironmentProblem


class ChosenShape(NamedTuple):
    """A shape, and the experiment that it is of."""

    config: BenchmarkConfig
    number: int
    shape: Shape


def choose_shape(environ: Mapping[str, str]) -> ChosenShape:
    """Return the shape that the environment of an index names. Raises ConfigError,
    EnvironmentProblem."""
    try:
        numbers = [int(each) for each in environ["AIPERF_SHAPES"].split(",")]
        number = numbers[int(environ["JOB_COMPLETION_INDEX"])]
        config = load_any(Path(environ["AIPERF_CONFIG"]))
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; an index is run only in a pod of a Job"
        ) from error
    assert isinstance(config, BenchmarkConfig)
    return ChosenShape(config, number, index_shapes(config)[number - 1])
