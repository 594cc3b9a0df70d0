"""The files of a scenario's result: text like LoadGen's mlperf_log_summary.txt, and the
pair `result_summary.json` and `config.yaml` in the layout of mlcommons/endpoints, which the
submission checker of MLPerf Inference v6.1 reads.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.experiments.scenario_result import LABEL, PERCENTILES, ScenarioResult, Series
from aiperf_svc.core.experiments.scenarios import MIN_DURATION_NS, Scenario
from aiperf_svc.domain.json_objects import Json

_TITLES = {
    Scenario.SINGLE_STREAM: "SingleStream",
    Scenario.MULTI_STREAM: "MultiStream",
    Scenario.SERVER: "Server",
    Scenario.INTERACTIVE: "Interactive",
    Scenario.OFFLINE: "Offline",
}
_RULE = "=" * 48


def summary_text(result: ScenarioResult, *, name: str) -> str:
    lines = [
        *_title(f"{LABEL}: results summary"),
        _line("System", name),
        _line("Model", result.model),
        _line("Scenario", _TITLES[result.scenario]),
        _line(_headline(result), "none" if result.value is None else f"{result.value:.2f}"),
        _line("Result is", "VALID" if result.is_valid else "INVALID"),
        *(f"  {gate.name}: {'yes' if gate.is_met else 'NO'}: {gate.text}" for gate in result.gates),
        "",
        *_title("Additional statistics"),
        _line("Completed samples", str(result.completed)),
        _line("Failed samples", str(result.failed)),
        _line("Duration (ns)", str(result.duration_ns)),
        _line("Samples per second", f"{result.samples_per_s:.2f}"),
    ]
    if result.tokens_per_s is not None:
        lines.append(_line("Tokens per second", f"{result.tokens_per_s:.2f}"))
    for title, series in (
        ("latency", result.latency),
        ("TTFT", result.ttft),
        ("TPOT", result.tpot),
    ):
        lines += ["", *_statistics(title, series)]
    return "\n".join([*lines, ""])


def result_summary(
    result: ScenarioResult, *, started_ns: int, version: str, is_complete: bool
) -> Json:
    lengths = result.tokens.statistics()
    lengths.pop("early_stopping_percentiles")
    return {
        "label": LABEL,
        "version": f"aiperf-svc {version}",
        "git_sha": None,
        "test_started_at": started_ns,
        "n_samples_issued": result.completed + result.failed,
        "n_samples_completed": result.completed,
        "n_samples_failed": result.failed,
        "duration_ns": result.duration_ns,
        "state": "complete" if is_complete else "interrupted",
        "complete": is_complete,
        "ttft": result.ttft.statistics(),
        "tpot": result.tpot.statistics(),
        "latency": result.latency.statistics(),
        "output_sequence_lengths": lengths,
        "qps": result.samples_per_s,
        "tps": result.tokens_per_s,
    }


def endpoints_config(config: BenchmarkConfig, result: ScenarioResult) -> Json:
    """Return the content of config.yaml."""
    load = config.load
    pattern: Json = {"type": "concurrency", "target_concurrency": load.concurrency}
    if result.scenario.has_limits:
        pattern = {"type": "poisson", "target_qps": load.request_rate}
    elif result.scenario is Scenario.OFFLINE:
        pattern = {"type": "max_throughput"}
    shortest_ns = min(MIN_DURATION_NS, load.duration or result.duration_ns)
    return {
        "name": config.name,
        "type": "offline" if result.scenario is Scenario.OFFLINE else "online",
        "model_params": {
            "name": config.endpoint.model,
            "streaming": "on" if config.endpoint.streaming else "off",
        },
        "settings": {
            "load_pattern": pattern,
            "runtime": {
                "min_duration_ms": shortest_ns // 10**6,
                "max_duration_ms": load.duration // 10**6 if load.duration else None,
                "n_samples_to_issue": load.requests,
                "scheduler_random_seed": config.random_seed,
                "dataloader_random_seed": config.random_seed,
            },
        },
    }


def _headline(result: ScenarioResult) -> str:
    title = result.metric[:1].upper() + result.metric[1:]
    return f"{title} ({result.unit})" if result.unit == "ns" else f"{title} per second"


def _statistics(title: str, series: Series) -> Iterable[str]:
    stats: Mapping[str, Any] = series.statistics()
    for name in ("min", "max", "avg"):
        if name in stats:
            yield _line(f"{name.capitalize()} {title} (ns)", f"{stats[name]:.0f}")
    for percent in PERCENTILES:
        value = series.percentile(percent)
        if value is not None:
            yield _line(f"{percent:.2f} percentile {title} (ns)", f"{value:.0f}")
    for percent in PERCENTILES:
        found = series.estimate(percent)
        text = "too few samples" if found is None else f"{found:.0f}"
        yield _line(f"{percent:.2f} percentile {title}, early stopping (ns)", text)


def _title(text: str) -> list[str]:
    return [_RULE, text, _RULE]


def _line(name: str, value: str) -> str:
    return f"{name:<48} : {value}"
