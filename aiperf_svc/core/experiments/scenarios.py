"""Scenarios like those of MLPerf Inference: how each loads the server, what it measures, and the
requirements for a run. A result is MLPerf-style; it is not a submission and is never called one.
"""

from enum import StrEnum
from typing import NamedTuple

from aiperf_svc.config.load import Load
from aiperf_svc.config.units import format_duration
from aiperf_svc.domain.errors import ConfigError

SAMPLES_PER_QUERY = 8
"""Samples per query of multi-stream."""
MIN_DURATION_NS = 600 * 10**9
"""Minimum run length of MLPerf. A shorter run is allowed, and the result reports it."""


class Scenario(StrEnum):
    """A way to load a server, with a metric and a gate."""

    SINGLE_STREAM = "single-stream"
    """One request after the other; the 90th percentile of the latency."""
    MULTI_STREAM = "multi-stream"
    """Eight samples per query; the 99th percentile of the query latency."""
    SERVER = "server"
    """Poisson arrivals; completed tokens per second, with limits on TTFT and TPOT."""
    INTERACTIVE = "interactive"
    """Like `server`, with lower limits for users who wait for every word."""
    OFFLINE = "offline"
    """Everything at once; tokens per second."""

    @property
    def percentile(self) -> float:
        """The percentile that decides the scenario."""
        return 0.9 if self is Scenario.SINGLE_STREAM else 0.99

    @property
    def has_limits(self) -> bool:
        """True for a scenario with latency limits."""
        return self in (Scenario.SERVER, Scenario.INTERACTIVE)


class LatencyLimits(NamedTuple):
    """Latency limits of a model in milliseconds; a value equal to a limit exceeds it."""

    ttft_ms: float
    tpot_ms: float


_SERVER, _INTERACTIVE = Scenario.SERVER, Scenario.INTERACTIVE
LIMITS: dict[str, dict[Scenario, LatencyLimits]] = {
    "llama2-70b": {
        _SERVER: LatencyLimits(2000, 200),
        _INTERACTIVE: LatencyLimits(450, 40),
    },
    "mixtral-8x7b": {_SERVER: LatencyLimits(2000, 200)},
    "llama3.1-405b": {
        _SERVER: LatencyLimits(6000, 175),
        _INTERACTIVE: LatencyLimits(4500, 80),
    },
    "llama3.1-8b": {
        _SERVER: LatencyLimits(2000, 100),
        _INTERACTIVE: LatencyLimits(500, 30),
    },
    "deepseek-r1": {
        _SERVER: LatencyLimits(2000, 80),
        _INTERACTIVE: LatencyLimits(1500, 15),
    },
    "gpt-oss-120b": {
        _SERVER: LatencyLimits(3000, 80),
        _INTERACTIVE: LatencyLimits(2000, 15),
    },
}
"""Limits of MLPerf Inference v6.0 by model."""
MIN_SAMPLES = {
    "llama2-70b": 24_576,
    "mixtral-8x7b": 15_000,
    "llama3.1-405b": 8_313,
    "llama3.1-8b": 13_368,
    "deepseek-r1": 4_388,
    "gpt-oss-120b": 6_396,
}
"""Minimum samples of an offline run by model."""


def known_model(name: str) -> str | None:
    """Return the MLPerf model for a name: `meta-llama/Llama-2-70b-chat-hf` is
    `llama2-70b`; None for other models."""
    plain = _plain(name)
    return next((known for known in LIMITS if _plain(known) in plain), None)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def scenario_load(scenario: Scenario, load: Load) -> Load:
    """Return the load of a scenario, with the rate, number of requests, duration and warmup of the
    config. Raises ConfigError for what the scenario lacks or cannot use."""
    match scenario:
        case Scenario.MULTI_STREAM:
            if load.request_rate is not None or load.concurrency != SAMPLES_PER_QUERY:
                raise ConfigError(
                    f"experiment.scenario 'multi-stream' sends {SAMPLES_PER_QUERY} requests when "
                    f"the {SAMPLES_PER_QUERY} before have ended; set load.concurrency "
                    f"{SAMPLES_PER_QUERY} and leave out load.request_rate"
                )
            if load.requests is not None and load.requests % SAMPLES_PER_QUERY:
                raise ConfigError(
                    f"load.requests {load.requests}: the scenario multi-stream has queries of "
                    f"{SAMPLES_PER_QUERY} samples; give a multiple of it"
                )
            return load.model_copy(update={"samples_per_query": SAMPLES_PER_QUERY})
        case Scenario.SERVER | Scenario.INTERACTIVE:
            return _server(scenario, load)
        case Scenario.SINGLE_STREAM:
            if load.is_open_loop or load.concurrency != 1:
                raise ConfigError(
                    "experiment.scenario 'single-stream' sends a request when the one before has "
                    "ended; set load.concurrency 1 and leave out load.request_rate"
                )
            return load
        case Scenario.OFFLINE:
            return _offline(load)


def _server(scenario: Scenario, load: Load) -> Load:
    if load.request_rate is None:
        raise ConfigError(
            f"experiment.scenario {scenario.value!r} needs load.request_rate, the rate of queries; "
            "experiment.search finds the highest"
        )
    if load.arrival.pattern != "poisson":
        raise ConfigError(
            f"load.arrival.pattern {load.arrival.pattern!r}: the scenario {scenario.value} has "
            "poisson arrivals; leave it out"
        )
    if load.concurrency is not None:
        raise ConfigError(
            f"load.concurrency {load.concurrency}: the scenario {scenario.value} sends each query "
            "when it is due; leave it out"
        )
    return load


def _offline(load: Load) -> Load:
    if load.is_open_loop:
        key = "load.fixed_schedule" if load.fixed_schedule else "load.request_rate"
        raise ConfigError(
            f"experiment.scenario 'offline' sends everything at once; leave out {key}"
        )
    if load.requests is None or load.duration:
        length = f", not load.duration {format_duration(load.duration)}" if load.duration else ""
        raise ConfigError(
            f"experiment.scenario 'offline' needs load.requests, the number of samples{length}; a "
            "run of MLPerf has so many that it takes ten minutes"
        )
    return load.model_copy(update={"concurrency": load.requests})
