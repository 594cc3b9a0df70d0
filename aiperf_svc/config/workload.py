"""The config of a benchmark that runs a tool on ranks: every kind except an inference server.

Each kind of workload has its own spec below `workload`; all other keys are common to all
benchmarks.
"""

import re
from typing import Annotated, Generic, Self, TypeVar

from pydantic import Field, model_validator

from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.base import Model, Name, Verbatim
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.secret_names import is_secret_name
from aiperf_svc.config.several_targets import NamedTarget
from aiperf_svc.config.slo import Slo
from aiperf_svc.config.units import PositiveDurationNs, SizeBytes

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Variable names that a shell can pass to a command."""


class WorkloadSpec(Model):
    """Keys that every kind of workload has; each kind adds its own."""

    kind: str
    image: Annotated[str, Field(min_length=1)] | None = None
    """Container image of the ranks. It needs the tool and a POSIX shell. Default: the image built
    from `images/workloads/<kind>`."""
    timeout: PositiveDurationNs | None = None
    """Timeout of one step. Default: depends on the kind and its other keys."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of times that a failed step is retried."""
    env: dict[str, Verbatim] = Field(default_factory=dict)
    """Environment variables of every command, in plain text."""
    secret_env: dict[str, Verbatim] = Field(default_factory=dict)
    """Secret environment variables: the name of each, and the key of its value in the stack's
    configuration (`pulumi config set --secret aiperf:KEY`). A local run takes the variables from
    its own environment."""
    output_limit: SizeBytes = 64 * 2**20
    """Maximum size of each file that a rank writes, including its output. A larger file fails the
    step; nothing is truncated."""

    @model_validator(mode="after")
    def _names_variables(self) -> Self:
        for key, names in (("env", self.env), ("secret_env", self.secret_env)):
            for name in names:
                if not _VARIABLE.fullmatch(name):
                    raise ValueError(f"{key}.{name}: expected a name of letters, digits and _")
        return self

    @model_validator(mode="after")
    def _hides_secrets(self) -> Self:
        for name in self.env:
            if is_secret_name(name):
                raise ValueError(
                    f"env.{name} would be in plain text in the results and in Pulumi's state; use "
                    f"secret_env: {{{name}: NAME}} and `pulumi config set --secret aiperf:NAME`"
                )
        return self


SpecT = TypeVar("SpecT", bound=WorkloadSpec, covariant=True)


class WorkloadConfig(Model, Generic[SpecT]):
    """The configuration of one benchmark of a tool."""

    name: Name = "benchmark"
    workload: SpecT
    repetitions: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Number of times that the measured steps are run, one after another."""
    deployment: Deployment = Deployment()
    slo: Slo = Slo()
    artifacts: Artifacts = Artifacts()
    random_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    experiment: Experiment | None = None
    """Trials of this config. The other keys then have the values of the first trial."""

    @property
    def kind(self) -> str:
        """The kind of workload."""
        return self.workload.kind

    @property
    def inference(self) -> None:
        """None: the config of an inference benchmark has no `workload`."""
        return None

    @property
    def tool(self) -> Self:
        """This config; None for an inference benchmark."""
        return self

    def with_image(self, image: str) -> Self:
        """Return this config with another image of the ranks."""
        workload = self.workload.model_copy(update={"image": image})
        return self.model_copy(update={"workload": workload})

    @property
    def search(self) -> None:
        """None: a search looks for a load of requests."""
        return None

    @property
    def targets(self) -> tuple[NamedTarget, ...]:
        """None: a tool has no targets."""
        return ()

    @model_validator(mode="after")
    def _has_no_requests(self) -> Self:
        if self.slo.goodput:
            raise ValueError("{slo.goodput} is about requests, and this workload sends none")
        if self.deployment.target.kind != "none":
            raise ValueError(
                "{deployment.target} is for an inference server; expected none with {workload}"
            )
        if self.experiment is not None and self.experiment.scenario is not None:
            raise ValueError("{experiment.scenario} is a load of requests; {workload} sends none")
        if self.experiment is not None and self.experiment.search is not None:
            raise ValueError(
                "{experiment.search} looks for a load of requests, and {workload} sends none; list "
                "the values in {experiment.product}"
            )
        return self


AnyWorkloadConfig = WorkloadConfig[WorkloadSpec]
"""Config of any kind of workload, for code that does not depend on the kind."""
Config = BenchmarkConfig | AnyWorkloadConfig
"""Content of a stack file."""
ConfigT = TypeVar("ConfigT", bound=Config)
