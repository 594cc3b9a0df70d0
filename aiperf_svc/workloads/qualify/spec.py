"""The keys of `workload: {kind: qualify}`."""

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationError,
    model_validator,
)

from aiperf_svc.config.base import Model, repeated
from aiperf_svc.config.problems import problems_in
from aiperf_svc.config.units import PositiveDurationNs
from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.core.qualify.measurements import SUSPECTS
from aiperf_svc.core.qualify.result import NodesOf
from aiperf_svc.domain.errors import ConfigError

_SHARED_KEYS = ("image", "secret_env", "output_limit", "retries")
"""Keys that all stages share, since they run on the same ranks."""


def _spec(value: Any) -> Any:
    """Make the spec of a stage's tool from its kind."""
    from aiperf_svc.workloads.registry import tool

    if isinstance(value, WorkloadSpec):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError("expected the keys of a workload, with its kind")
    if value["kind"] == "qualify":
        raise ValueError("a stage runs another kind than qualify")
    try:
        return tool(value["kind"]).spec.model_validate(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    except ValidationError as error:
        problems = problems_in(error, value, tool(value["kind"]).spec)
        raise ValueError("; ".join(each.line({}) for each in problems)) from error


def _keys(spec: WorkloadSpec, info: SerializationInfo) -> dict[str, Any]:
    """Return the keys of a stage's tool with its kind, which its model has as a default."""
    keys = spec.model_dump(
        mode=info.mode, exclude_defaults=info.exclude_defaults, by_alias=info.by_alias
    )
    return {"kind": spec.kind, **keys}


StageWorkload = Annotated[WorkloadSpec, BeforeValidator(_spec), PlainSerializer(_keys)]
StageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")]


class Stage(Model):
    """One tool, on each node alone, on pairs of nodes, or on all nodes together."""

    nodes: NodesOf
    """`alone`: each node by itself, all at the same time; `pairs`: every pair of nodes, in rounds
    of simultaneous pairs; `all`: one run on all nodes."""
    workload: StageWorkload
    """The tool and its keys, as in `workload` of a separate benchmark. `nodes` determines the
    number of ranks."""
    name: StageName | None = None
    """Name of the stage. Default: the kind of its tool."""
    judge: tuple[str, ...] = ()
    """Metrics of the tool to judge. Default: the first one."""

    @property
    def own_name(self) -> str:
        """The name of the stage."""
        return self.name or self.workload.kind

    @model_validator(mode="after")
    def _shares_ranks(self) -> Self:
        for key in _SHARED_KEYS:
            usual = WorkloadSpec.model_fields[key].get_default(call_default_factory=True)
            if getattr(self.workload, key) != usual:
                raise ValueError(
                    f"{{workload}}: {key} belongs to all stages: set it next to {{stages}}"
                )
        return self


class CheckLimit(Model):
    """The worst value of a check that passes."""

    check: str
    """Stage and metric: `iperf_bandwidth`."""
    min: float | str | None = None
    """Lowest value, in the metric's unit or with a unit: `23Gbit/s`."""
    max: float | str | None = None
    """Highest value, in the same form."""
    of_baseline: Annotated[float, Field(gt=0, le=1)] | None = None
    """Lowest share of the baseline. For a latency, the highest value is the baseline divided by
    this share."""
    gpu: str = "*"
    """GPU product to which it applies, with wildcards: `NVIDIA-H100-*`."""
    fabric: str = "*"
    """Fabric to which it applies, with wildcards."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        keys = [key for key in ("min", "max", "of_baseline") if getattr(self, key) is not None]
        if len(keys) != 1:
            raise ValueError("expected one of {min}, {max} and {of_baseline}")
        return self

    def applies_to(self, gpu: str, fabric: str) -> bool:
        """Return whether it applies to nodes with this GPU product and fabric."""
        return fnmatchcase(gpu, self.gpu) and fnmatchcase(fabric, self.fabric)


class QualifySpec(WorkloadSpec):
    """Stages of tools on the same nodes, and what their values are compared with. The nodes are
    `deployment.ranks.count` or `nodes`, with `pairs: rounds`."""

    kind: Literal["qualify"] = "qualify"
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=20)]
    """Stages in the order in which they run. A node that fails a stage is excluded from the later
    ones."""
    limits: tuple[CheckLimit, ...] = ()
    """Limits of checks. Limits for other GPU products or fabrics are ignored, but at least one must
    apply."""
    gpu: str = ""
    """GPU product of the nodes. Default: the value of `nvidia.com/gpu.product` in
    `deployment.placement.node_selector`."""
    fabric: str = ""
    """Fabric of the nodes, for limits that depend on it: `roce`, `infiniband`."""
    baseline: dict[str, dict[str, Annotated[float, Field(ge=0)]]] = Field(default_factory=dict)
    """Baseline of each check on each node. `qualify --baseline` reads it from the results of an
    earlier qualification. The node `""` has the median of all nodes."""
    max_nodes_at_once: Annotated[int, Field(ge=2, le=1_000)] | None = None
    """Maximum number of nodes that are measured at the same time in the stages `alone` and `pairs`.
    Default: all."""
    time_limit: PositiveDurationNs | None = None
    """Measuring time after which no further trial starts. The remaining checks are not measured and
    count as failed."""
    stage: str | None = None
    """Stage of this trial. The program sets this key and the next three."""
    round: int | Literal["suspects"] | None = None
    """Round of this trial in a stage of pairs, or `suspects`."""
    without: tuple[str, ...] = ()
    """Nodes that have failed."""
    repeat: tuple[tuple[str, ...], ...] = ()
    """Suspect nodes to measure again, each with good nodes."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [stage.own_name for stage in self.stages]
        if twice := repeated(names):
            raise ValueError(f"{{stages}}: two are called {twice}; give each a `name` of its own")
        if self.stage is not None and self.stage not in names:
            raise ValueError(f"{{stage}}: no stage {self.stage!r}")
        return self

    @property
    def current(self) -> Stage | None:
        """The stage of this trial; None: the config of all trials."""
        return next((stage for stage in self.stages if stage.own_name == self.stage), None)

    @property
    def repeats_suspects(self) -> bool:
        """Whether this trial measures suspects again."""
        return self.round == SUSPECTS
