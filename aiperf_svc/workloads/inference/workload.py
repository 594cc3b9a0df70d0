"""The workload that sends requests to an inference server."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiperf_svc.config import agentx
from aiperf_svc.config.benchmark import INFERENCE, BenchmarkConfig
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.target_notices import target_notices
from aiperf_svc.core.experiments.scenarios import Scenario, scenario_load
from aiperf_svc.core.load.phase_hooks import longest_before_load_ns
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import all_times
from aiperf_svc.plan.fan_out import IndexStack, index_stack
from aiperf_svc.plan.inference import InferenceStack
from aiperf_svc.plan.lifetime import LongestTimes, load_times, with_uptime
from aiperf_svc.plan.service_pods import PAGES_KEY, TARGET_KEY
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.plan.topology import Facts, Topology, beyond_ceiling, plan
from aiperf_svc.protocol.services import Service
from aiperf_svc.workloads.inference import checks
from aiperf_svc.workloads.inference.preview import inference_rows, sizing_line
from aiperf_svc.workloads.workload import (
    LocalNeeds,
    ReplayNs,
    Secret,
    TrialTimes,
    WorkerPriority,
    Workload,
    no_length,
)


class Inference(Workload[BenchmarkConfig]):
    """The workload of configs without the key `workload`."""

    kind = INFERENCE
    runs_on_ranks = False

    # --- the config ------------------------------------------------------------------------------

    def config_problems(self, config: BenchmarkConfig) -> list[Problem]:
        return checks.config_problems(config)

    def cluster_problems(self, config: BenchmarkConfig) -> list[Problem]:
        return checks.cluster_problems(config)

    def local_needs(self, config: BenchmarkConfig) -> LocalNeeds:
        return checks.local_needs(config)

    def secrets(self, config: BenchmarkConfig) -> tuple[Secret, ...]:
        """Return the keys of the target and of pages of metrics."""
        key_env, pages_env = config.endpoint.api_key_env, config.telemetry.key_env
        callers = [Service.TIMING_MANAGER] if config.may_call_hooks else []
        callers += [Service.RECORDS_MANAGER] if config.quality is not None else []
        key = Secret(key_env or "", TARGET_KEY, (Service.WORKER, *callers))
        pages = Secret(pages_env or "", PAGES_KEY, (Service.RECORDS_MANAGER,))
        return tuple(each for each in (key, pages) if each.variable)

    def subject(self, config: BenchmarkConfig) -> str:
        """Return the server and the model."""
        return f"{config.endpoint.url} · {config.endpoint.model}"

    # --- trials ----------------------------------------------------------------------------------

    def trial(self, config: BenchmarkConfig, experiment: Experiment) -> BenchmarkConfig:
        """Return the config of a trial with the load of the scenario or with the objectives of the
        search. Raises ConfigError."""
        if experiment.scenario is not None:
            load = scenario_load(Scenario(experiment.scenario), config.load)
            changed: dict[str, Any] = {"load": load}
            if load.samples_per_query > 1:  # One worker sends a whole query.
                changed["workers"] = config.workers.model_copy(update={"min": 1, "max": 1})
            config = config.model_copy(update=changed)
        if experiment.search is not None:
            # It imports the metrics, which is slow, and few experiments search.
            from aiperf_svc.core.experiments.criteria import searched_slo

            try:
                slo = searched_slo(experiment.search, config.slo)
            except ValueError as error:
                key = "maximize" if experiment.search.maximize is not None else "holds"
                raise ConfigError(f"experiment.search.{key}: {error}") from error
            config = config.model_copy(update={"slo": slo})
        return config

    def with_own_prompts(self, config: BenchmarkConfig, number: int) -> BenchmarkConfig:
        """Return the config of a trial with prompts that only trials of this number send, unless
        the config sets a variant. The server may have cached the prompts of other trials."""
        if config.dataset.variant is not None:
            return config
        dataset = config.dataset.model_copy(update={"variant": number})
        return config.model_copy(update={"dataset": dataset})

    def trial_times(self, config: BenchmarkConfig, replay_ns: ReplayNs = no_length) -> TrialTimes:
        """Return the times of a trial: warmup and load, plus at most their grace periods. The time
        of a number of requests is unknown. A fixed schedule and whole passes only have an expected
        time."""
        times, warmup = load_times(config), config.load.warmup
        load = config.load
        length_ns = replay_ns(config) or load.longest_schedule or load.min_duration
        if not times.is_bounded and (length_ns is None or (warmup and not warmup.duration)):
            return TrialTimes(None, None)
        load_ns = min(each for each in (config.load.end, length_ns) if each is not None)
        expected = load_ns + ((warmup.duration or 0) if warmup else 0)
        return TrialTimes(expected, times.load if times.is_bounded else None)

    # --- the plan --------------------------------------------------------------------------------

    def topology(self, config: BenchmarkConfig, facts: Facts) -> Topology:
        return plan(config, facts)

    def longest_times(
        self, config: BenchmarkConfig, trials: Sequence[BenchmarkConfig]
    ) -> LongestTimes:
        times = all_times([load_times(each) for each in trials], config.experiment)
        return with_uptime(times, config)

    def stack(
        self,
        config: BenchmarkConfig,
        trials: Sequence[BenchmarkConfig],
        settings: StackSettings,
    ) -> InferenceStack:
        times = self.longest_times(config, trials)
        target = config.deployment.target
        rendered = settings.render(target) if target.kind == "release" else ()
        return InferenceStack(config=config, trials=trials, times=times, rendered=rendered)

    def index_stack(
        self, config: BenchmarkConfig, indexes: Sequence[Sequence[BenchmarkConfig]]
    ) -> IndexStack:
        return index_stack(config, indexes)

    # --- the run ---------------------------------------------------------------------------------

    def warnings(
        self,
        config: BenchmarkConfig,
        facts: Facts,
        topology: Topology,
        environ: Mapping[str, str],
    ) -> list[str]:
        written = config.model_dump(mode="json") if config.scenario else {}
        return [
            *target_notices(config, environ),
            *beyond_ceiling(config, facts, topology),
            *([agentx.conformance(written)] if written and agentx.deviations(written) else []),
        ]

    def has_warmup(self, config: BenchmarkConfig) -> bool:
        return config.load.has_warmup

    def longest_waits_ns(self, config: BenchmarkConfig, *, is_held: bool) -> int:
        """Return how long workers may wait for the server and for the first hooks of a held run."""
        hooks_ns = longest_before_load_ns(config) if is_held else 0
        return config.endpoint.wait_for_server + hooks_ns

    def worker_priority(self, config: BenchmarkConfig) -> WorkerPriority:
        """Return the priority of workers, which keep a schedule in open loop."""
        is_open = config.load.is_open_loop
        return WorkerPriority.BEFORE_ALL if is_open else WorkerPriority.WHILE_IDLE

    # --- the preview -----------------------------------------------------------------------------

    def preview(self, plan: StackPlan, config: BenchmarkConfig) -> list[tuple[str, str]]:
        rows = inference_rows(config)
        if config.workers.sizing == "load":
            rows.append(("workers", sizing_line(plan, config)))
        return rows
