"""Derives from a config of `qualify` the config of each stage's tool, the checks and limits, and
the problems."""

from collections.abc import Iterator
from typing import Any

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.experiments.qualify_trials import planned_parameters
from aiperf_svc.core.qualify.measurements import Limit, Rules, StagePlan
from aiperf_svc.core.qualify.result import CheckInfo
from aiperf_svc.core.results.slo_results import limit_of
from aiperf_svc.domain.name_suggestions import did_you_mean
from aiperf_svc.workloads.pairs import circle_rounds
from aiperf_svc.workloads.qualify.spec import CheckLimit, QualifySpec, Stage
from aiperf_svc.workloads.registry import tool

Config = WorkloadConfig[QualifySpec]
_PRODUCT = "nvidia.com/gpu.product"
PAIR_ALGORITHM = {"NCCL_ALGO": "RING"}
"""On two nodes NCCL's tree algorithms report up to twice the network's rate."""


def node_count(config: Config) -> int:
    ranks = config.deployment.ranks
    return ranks.count or len(ranks.nodes)


def stage_plans(spec: QualifySpec, count: int) -> tuple[StagePlan, ...]:
    rounds = len(circle_rounds(count))
    return tuple(
        StagePlan(
            name=stage.own_name,
            nodes=stage.nodes,
            workload=stage.workload.kind,
            rounds=rounds if stage.nodes == "pairs" else 1,
        )
        for stage in spec.stages
    )


def stage_ranks(stage: Stage, config: Config) -> int:
    """Return the maximum number of ranks of a stage's tool."""
    return {"alone": 1, "pairs": 2, "all": node_count(config)}[stage.nodes]


def check_name(stage: Stage, tag: str) -> str:
    return f"{stage.own_name.replace('-', '_')}_{tag}"


def _limit_value(written: float | str | None, info: CheckInfo) -> float | None:
    """Return a limit in the unit of its metric. Raises ValueError."""
    if written is None:
        return None
    return limit_of(info.unit, written)


def _gpu(config: Config) -> str:
    return config.workload.gpu or config.deployment.placement.node_selector.get(_PRODUCT, "")


def applicable_limits(config: Config) -> list[CheckLimit]:
    """Return the limits for this GPU product and fabric."""
    spec, gpu = config.workload, _gpu(config)
    return [limit for limit in spec.limits if limit.applies_to(gpu, spec.fabric)]


def effective_limits(config: Config) -> list[CheckLimit]:
    """Return the applicable limits that have a value. A share of the baseline needs a baseline."""
    baseline = config.workload.baseline
    return [
        limit
        for limit in applicable_limits(config)
        if limit.of_baseline is None or baseline.get(limit.check)
    ]


def inner_config(config: Config, stage: Stage, count: int) -> WorkloadConfig[Any]:
    """Return the config of a stage's tool as a separate benchmark on `count` ranks."""
    inner, spec = tool(stage.workload.kind), stage.workload
    if inner.rank_key:
        spec = spec.model_copy(update={inner.rank_key: count})
    if stage.nodes == "pairs" and spec.kind == "nccl":
        spec = spec.model_copy(update={"env": PAIR_ALGORITHM | spec.env})
    pairs = {"pairs": "one", "count": None} if inner.rank_key else {"pairs": "all", "count": 2}
    ranks = config.deployment.ranks.model_copy(update=pairs)
    deployment = config.deployment.model_copy(update={"ranks": ranks})
    return inner.config_model().model_construct(
        name=config.name,
        workload=spec,
        deployment=deployment,
        repetitions=1,
        slo=config.slo,
        artifacts=config.artifacts,
        random_seed=config.random_seed,
        experiment=None,
    )


def rules_of(config: Config) -> Rules:
    """Return the rules for judging the measurements of a config."""
    spec = config.workload
    checks = {info.check: info for info in _checks(config)}
    judged = {check for stage in spec.stages for check in _judged(config, stage)}
    limits = applicable_limits(config)
    judged |= {limit.check for limit in limits}
    return Rules(
        stages=stage_plans(spec, node_count(config)),
        checks=tuple(info for name, info in checks.items() if name in judged),
        limits=tuple(
            Limit(
                check=limit.check,
                value=_limit_value(limit.min if limit.max is None else limit.max, info),
                share=limit.of_baseline,
            )
            for limit in limits
            for info in (checks[limit.check],)
        ),
        baseline=spec.baseline,
    )


def _judged(config: Config, stage: Stage) -> list[str]:
    infos = tool(stage.workload.kind).metrics_of(inner_config(config, stage, 2))
    return [check_name(stage, tag) for tag in stage.judge or [info.tag for info in infos[:1]]]


def _checks(config: Config) -> Iterator[CheckInfo]:
    """Return every metric of all stages that has a direction."""
    for stage in config.workload.stages:
        for info in tool(stage.workload.kind).metrics_of(inner_config(config, stage, 2)):
            if info.better:
                yield CheckInfo(
                    check=check_name(stage, info.tag),
                    stage=stage.own_name,
                    nodes=stage.nodes,
                    name=info.name,
                    unit=info.unit,
                    better=info.better,
                )


def config_problems(config: Config) -> list[str]:
    spec, ranks = config.workload, config.deployment.ranks
    if ranks.pairs != "rounds":
        text = "expected rounds, and the number of nodes in count, or their names in nodes"
        return [f"deployment.ranks.pairs: {ranks.pairs!r}: {text}"]
    expected = planned_parameters(stage_plans(spec, node_count(config)))
    experiment = config.experiment
    if (
        experiment is not None
        and experiment.part is None
        and experiment.permutations() != list(expected)
    ):
        return ["experiment: a qualification has trials of its own; leave it out"]
    if experiment is not None and (key := experiment._first_set("repetitions", "order")):
        return [
            f"experiment.{key}: a qualification has trials of its own, in their own order; leave "
            "it out (`repetitions` beside `workload` repeats each measurement)"
        ]
    found = [
        f"workload.stages.{number}.{text}"
        for number, stage in enumerate(spec.stages)
        for text in _stage_problems(config, stage)
    ]
    return found or _limit_problems(config)


def _stage_problems(config: Config, stage: Stage) -> Iterator[str]:
    inner, kind = tool(stage.workload.kind), stage.workload.kind
    fixed = sum(role.count for role in inner.roles(stage.workload))
    if not inner.rank_key and (stage.nodes != "pairs" or fixed != 2):
        yield f"nodes: {stage.nodes!r}: {kind} measures {fixed} nodes at a time" + (
            "; expected pairs" if fixed == 2 else ", and does not fit a qualification"
        )
        return
    if inner.rank_key and stage.workload._is_set(inner.rank_key):
        yield (
            f"workload.{inner.rank_key}: the number of ranks follows from the stage's nodes; "
            "leave it out"
        )
    infos = {info.tag: info for info in inner.metrics_of(inner_config(config, stage, 2))}
    directed = [tag for tag, info in infos.items() if info.better]
    for tag in stage.judge or tuple(infos)[:1]:
        if tag not in infos:
            hint = did_you_mean(tag, infos, f"expected {', '.join(infos)}")
            yield f"judge: {tag!r} is not a metric of {kind}{hint}"
        elif tag not in directed:
            expected = ", ".join(directed) or "one with `better`"
            yield f"judge: no direction of {tag!r} is better, as judging needs; expected {expected}"
    of_stage = inner_config(config, stage, stage_ranks(stage, config))
    for text in (*inner.problems(of_stage), *inner.device_problems(of_stage)):
        yield text if text.startswith("workload.") else f"workload: {text}"


def _limit_problems(config: Config) -> list[str]:
    spec = config.workload
    checks = {info.check: info for info in _checks(config)}
    found = []
    nodes = {"gpu": _gpu(config), "fabric": spec.fabric}
    for number, limit in enumerate(spec.limits):
        where = f"workload.limits.{number}"
        for key, value in nodes.items():
            if getattr(limit, key) != "*" and not value:
                remedy = f"set workload.{key}"
                if key == "gpu":
                    remedy += f", or {_PRODUCT} in deployment.placement.node_selector"
                found.append(
                    f"{where}.{key}: {getattr(limit, key)!r}: whether it applies is unknown, as "
                    f"the {key} of the nodes is; {remedy}"
                )
        info = checks.get(limit.check)
        if info is None:
            hint = did_you_mean(limit.check, checks, f"expected {', '.join(checks)}")
            found.append(f"{where}.check: {limit.check!r} is not a check of these stages{hint}")
            continue
        wrong = "min" if info.better == "lower" else "max"
        if getattr(limit, wrong) is not None:
            found.append(f"{where}.{wrong}: {info.better} {info.check} is better")
            continue
        try:
            _limit_value(limit.min if limit.max is None else limit.max, info)
        except ValueError as error:
            found.append(f"{where}: {limit.check}: {error}")
    if spec.limits and not found and not applicable_limits(config):
        names = ", ".join(f"{key} {value!r}" for key, value in nodes.items() if value)
        found.append(f"workload.limits: none of {len(spec.limits)} applies to {names}")
    elif spec.limits and not found and not effective_limits(config):
        found.append(
            "workload.limits: all that apply are of_baseline, without a baseline of these checks: "
            "give one (qualify --baseline FOLDER), or leave the limits out"
        )
    for check in spec.baseline:
        if check not in checks:
            found.append(
                f"workload.baseline: {check!r} is not a check of these stages; expected "
                f"{', '.join(checks)}"
            )
    return found
