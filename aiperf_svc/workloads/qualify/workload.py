"""Runs other kinds on the nodes of a cluster, and compares the nodes.

The config contains an experiment, whose trials are the stages and the rounds of pairs
(`core/experiments/qualify_trials.py`). A trial runs the steps of its stage's tool on each node, on
the pairs of one round, or on all nodes. The stage's name precedes the metric in the name of a
value, so one result contains all stages.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import msgspec
from pydantic import ValidationError

from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.units import format_duration
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.machine import EndedTrial, Strategy
from aiperf_svc.core.experiments.qualify_trials import (
    QualifyTrials,
    lacks_nodes,
    planned_parameters,
)
from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.qualify.judgement import GOOD_ALONE, MAX_SUSPECTS, Judgement
from aiperf_svc.core.qualify.measurements import (
    NODE,
    ROUND,
    SOURCE,
    STAGE,
    SUSPECTS,
    TARGET,
    TEST,
    node_names,
)
from aiperf_svc.core.qualify.result import Qualification
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.plan.lifetime import LongestTimes
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.pairs import circle_rounds, group_steps, pair_labels
from aiperf_svc.workloads.qualify.spec import QualifySpec, Stage
from aiperf_svc.workloads.qualify.stage_rules import (
    Config,
    check_name,
    config_problems,
    effective_limits,
    inner_config,
    node_count,
    rules_of,
    stage_plans,
    stage_ranks,
)
from aiperf_svc.workloads.registry import tool
from aiperf_svc.workloads.steps import Command, Output, Rank, Reading, Step, Tool
from aiperf_svc.workloads.tool import ToolWorkload


class Qualify(ToolWorkload[QualifySpec]):
    """The kind `qualify`."""

    kind = "qualify"
    summary = "verdicts on the nodes and paths of a cluster, by the tools of other kinds"
    spec = QualifySpec
    tools = (
        Tool("fio", "fio"),
        Tool("iperf3", "iperf3"),
        Tool("ib_write_bw", "perftest"),
        Tool("ucx_perftest", "ucx-utils"),
    )
    """Tools of its image. A config needs the tools of its stages."""
    metrics = ()

    def completed(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the experiment whose trials are the stages and rounds."""
        try:
            spec = QualifySpec.model_validate(data.get("workload"))
            deployment = Deployment.model_validate(data.get("deployment") or {})
        except ValidationError:
            return data  # The config's own checks report the mistake.
        experiment = data.get("experiment") or {}
        if not isinstance(experiment, Mapping) or "explicit" in experiment:
            return data
        count = deployment.ranks.count or len(deployment.ranks.nodes)
        explicit = list(planned_parameters(stage_plans(spec, count)))
        return {**data, "experiment": {**experiment, "explicit": explicit}}

    # --- checks of the config --------------------------------------------------------------------

    def problems(self, config: Config) -> list[str]:
        return config_problems(config)

    # --- the tools of the stages -----------------------------------------------------------------

    def _stages(self, config: Config) -> tuple[Stage, ...]:
        current = config.workload.current
        return config.workload.stages if current is None else (current,)

    def tools_of(self, config: Config) -> tuple[Tool, ...]:
        found = (
            each
            for stage in config.workload.stages
            for each in tool(stage.workload.kind).tools_of(_stage_config(config, stage))
        )
        return tuple(dict.fromkeys(found))

    def kinds_of(self, config: Config) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage.workload.kind for stage in config.workload.stages))

    def files(self, config: Config) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for stage in self._stages(config):
            found |= tool(stage.workload.kind).files(_stage_config(config, stage))
        return found

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        return tuple(
            msgspec.structs.replace(
                info, tag=check_name(stage, info.tag), name=f"{stage.own_name}: {info.name}"
            )
            for stage in self._stages(config)
            for info in tool(stage.workload.kind).metrics_of(_stage_config(config, stage))
        )

    def needs_privilege(self, config: Config) -> tuple[str, ...]:
        found = (
            each
            for stage in config.workload.stages
            for each in tool(stage.workload.kind).needs_privilege(_stage_config(config, stage))
        )
        return tuple(dict.fromkeys(found))

    def local_problems(self, config: Config) -> list[str]:
        return [
            text
            for stage in config.workload.stages
            for text in tool(stage.workload.kind).local_problems(_stage_config(config, stage))
        ]

    # --- the steps of a trial --------------------------------------------------------------------

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec, stage = config.workload, config.workload.current
        if stage is None:
            return ()
        names = node_names([(rank.number, rank.node) for rank in ranks])
        by_name = {names[rank.number]: rank for rank in ranks}
        left = [rank for rank in ranks if names[rank.number] not in spec.without]
        units: Iterable[tuple[Rank, ...]]
        if spec.repeats_suspects:
            repeats = [[by_name[name] for name in each if name in by_name] for each in spec.repeat]
            # A plan has the maximum number of ranks.
            max_repeats = MAX_SUSPECTS + (GOOD_ALONE if stage.nodes == "alone" else 0)
            repeats = repeats or [list(ranks[: 1 if stage.nodes == "alone" else 3])] * max_repeats
            units = (
                tuple(unit)
                for each in repeats
                for unit in (combinations(each, 2) if stage.nodes == "pairs" else [each])
            )
        elif stage.nodes == "all":
            units = (tuple(left),)
        elif stage.nodes == "alone":
            units = ((rank,) for rank in left)
        else:
            assert isinstance(spec.round, int)
            pairs = circle_rounds(len(ranks))[spec.round - 1]
            # The pods of a resumed qualification may run on other nodes.
            by_node = sorted(ranks, key=lambda rank: rank.node)
            both = ((by_node[one], by_node[other]) for one, other in pairs)
            units = (pair for pair in both if pair[0] in left and pair[1] in left)
        of_units = [self._steps_of(config, stage, unit, names) for unit in units]
        # All steps prepare, then all pairs run the first direction, then the second.
        return tuple(
            each
            for at in range(max(map(len, of_units), default=0))
            for steps in of_units
            for each in steps[at : at + 1]
        )

    def planned_steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec, steps = config.workload, self.steps(config, ranks)
        if spec.repeats_suspects or spec.current is None or spec.current.nodes == "all":
            return steps
        return group_steps(steps, ranks, max_nodes=spec.max_nodes_at_once)

    def _steps_of(
        self, config: Config, stage: Stage, unit: Sequence[Rank], names: Mapping[int, str]
    ) -> list[Step]:
        """Return the steps of a stage's tool on one node, on one pair, or on all nodes."""
        found = []
        inner = tool(stage.workload.kind)
        for step in inner.steps(inner_config(config, stage, len(unit)), unit):
            labels = {TEST: step.name}
            if stage.nodes == "alone":
                labels[NODE] = where = names[unit[0].number]
            elif stage.nodes == "pairs":
                one, other = unit
                is_backward = step.labels == pair_labels((other, one)) != pair_labels((one, other))
                source, target = (other, one) if is_backward else (one, other)
                labels |= {SOURCE: names[source.number], TARGET: names[target.number]}
                where = f"{labels[SOURCE]} to {labels[TARGET]}"
            else:
                where = "all nodes"
            found.append(
                msgspec.structs.replace(
                    step,
                    name=where if stage.nodes == "pairs" else f"{step.name} on {where}",
                    labels=labels,
                    headline=check_name(stage, step.headline) if step.headline else "",
                    commands=_with_env(step.commands, stage),
                    servers=_with_env(step.servers, stage),
                )
            )
        return found

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        stage = config.workload.current
        assert stage is not None
        inner = inner_config(config, stage, len(step.ranks))
        own = msgspec.structs.replace(step, name=step.labels[TEST])
        reading = tool(stage.workload.kind).read(inner, own, outputs)
        values = {check_name(stage, tag): value for tag, value in reading.values.items()}
        return msgspec.structs.replace(reading, values=values)

    def progress(self, config: Config, line: str) -> str:
        stage = config.workload.current
        if stage is None:
            return ""
        return tool(stage.workload.kind).progress(_stage_config(config, stage), line)

    def checks(self, config: Config, readings: Sequence[Reading]) -> tuple[Reason, ...]:
        stage = config.workload.current
        if stage is None:
            return ()
        return tool(stage.workload.kind).checks(_stage_config(config, stage), readings)

    # --- the qualification -----------------------------------------------------------------------

    def strategy(
        self, config: Config, trials: Sequence[Trial], ended: Sequence[EndedTrial]
    ) -> Strategy:
        limit_ns = config.workload.time_limit
        found = QualifyTrials(
            trials,
            rules_of(config),
            finished=[trial.number for trial, _ in ended],
            time_limit_s=None if limit_ns is None else limit_ns / 1e9,
        )
        for trial, finding in ended:
            found.add(trial, finding)
        return found

    def unnecessary_trials(
        self, config: Config, trials: Sequence[Trial], ended: Sequence[TrialRow], *, is_local: bool
    ) -> frozenset[int]:
        """Return the trials that need not run: of stages with too few good nodes, and of suspects
        in finished stages without any. On a cluster, also of all finished stages, since new pods
        lack the earlier measurements."""
        rules = rules_of(config)
        measured = [each for row in ended for each in row.measurements]
        judgement = Judgement(rules, measured)
        finished = {row.number for row in ended}
        found = set[int]()
        for stage in rules.stages:
            stage_trials = [each for each in trials if each.parameters[STAGE] == stage.name]
            before = {each.number for each in trials if each.number < stage_trials[0].number}
            if before <= finished | found and lacks_nodes(stage, judgement):
                found |= {each.number for each in stage_trials} - finished
            repeated = {each.number for each in stage_trials if each.parameters[ROUND] == SUSPECTS}
            has_ended = finished.issuperset({each.number for each in stage_trials} - repeated)
            if has_ended and not (is_local and judgement.suspects(stage)):
                found |= repeated - finished
        return frozenset(found)

    def qualification(self, config: Config, rows: Sequence[TrialRow]) -> Qualification:
        measured = [each for row in rows for each in row.measurements]
        nodes = config.deployment.ranks.nodes
        is_named = isinstance(nodes, tuple) and len(set(nodes)) == node_count(config)
        found = Judgement(rules_of(config), measured).qualification(nodes if is_named else ())
        causes = Counter(
            row.measured.cause
            for row in rows
            if row.measured is not None and not row.measured.is_usable
        )
        # The verdict on the nodes covers failed steps.
        del causes["step-failed"]
        end_ns = max((row.end_wall_ns for row in rows), default=0)
        ended = datetime.fromtimestamp(end_ns // 10**9, UTC)
        return msgspec.structs.replace(
            found,
            ended_at=f"{ended:%Y%m%dT%H%M%SZ}",
            warnings=tuple(
                f"the verdict on the measurement is invalid in {count:,} of {len(rows):,} trials: "
                f"{cause or 'see their reports'}"
                for cause, count in causes.items()
            ),
        )

    # --- the plan --------------------------------------------------------------------------------

    def longest_times(self, config: Config, trials: Sequence[Config]) -> LongestTimes:
        """Return the maximum times: the time limit, plus one trial that began before it."""
        limit_ns = config.workload.time_limit
        times = super().longest_times(config, trials)
        if limit_ns is None:
            return times
        longest_ns = limit_ns + max(map(self._steps_ns, trials))
        return msgspec.structs.replace(times, load=min(times.load, longest_ns))

    def preview(self, plan: StackPlan, config: Config) -> list[tuple[str, str]]:
        spec = config.workload
        bounds = [f"{node_count(config):,} nodes"]
        if spec.max_nodes_at_once is not None:
            bounds.append(f"at most {spec.max_nodes_at_once:,} at once")
        if spec.time_limit is not None:
            bounds.append(f"no trial begins after {format_duration(spec.time_limit)}")
        if spec.limits:
            applied = len(effective_limits(config))
            bounds.append(f"{applied:,} of {len(spec.limits):,} limits apply")
        rows = [
            (f"stage {stage.own_name}", f"{stage.workload.kind}, nodes {stage.nodes}")
            for stage in spec.stages
        ]
        own = [row for row in super().preview(plan, config) if row[0] != "workload"]
        return [("qualify", ", ".join(bounds)), *rows, *own]


def _stage_config(config: Config, stage: Stage) -> WorkloadConfig[Any]:
    """Return the config of a stage's tool on the maximum number of ranks of the stage."""
    return inner_config(config, stage, stage_ranks(stage, config))


def _with_env(commands: Iterable[Command], stage: Stage) -> tuple[Command, ...]:
    env = stage.workload.env
    return tuple(msgspec.structs.replace(each, env={**env, **each.env}) for each in commands)
