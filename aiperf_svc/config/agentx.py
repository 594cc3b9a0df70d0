"""The keys that InferenceX fixes for its agent benchmark, AgentX. `scenario: agentx` sets them
where a config does not, and `core/rules/agentx.py` checks them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiperf_svc.config.paths import value_at, with_value
from aiperf_svc.domain.json_objects import Json


class Rules(NamedTuple):
    """Name, version and source of a set of rules."""

    name: str
    version: str
    source: str


RULES = Rules(
    "agentx-2026-08", "InferenceX AgentX as of 2026-08-21", "SemiAnalysisAI/InferenceX 843c625"
)
NAMES = ("agentx", "inferencex-agentx-mvp")
"""Names of the scenario: ours, and AIPerf's."""
FIXED: tuple[tuple[str, Any], ...] = (
    ("endpoint.streaming", True),
    ("endpoint.force_output_length", True),
    ("endpoint.use_server_token_count", True),
    ("dataset.kind", "weka_trace"),
    ("dataset.cache_bust", "first_turn_prefix"),
    ("dataset.cache_bust_per", "conversation"),
    ("load.agentic.start.min", 0.25),
    ("load.agentic.start.max", 0.75),
    ("load.agentic.warmup_requests", 10),
    ("load.agentic.warmup_grace", "30m"),
    ("load.agentic.system_idle_cap", "10s"),
    ("load.agentic.trajectory_idle_cap", "5m"),
    ("load.duration", "1h"),
    ("workers.max", 1),
    ("random_seed", 42),
)
"""Values that the rules fix. There is one worker, because several workers do not know whether any
request of the whole load is in flight."""
UNTOUCHED: tuple[tuple[str, Any], ...] = (
    ("dataset.delay_factor", 1.0),
    ("dataset.max_delay", None),
    ("dataset.think_time_only", False),
    ("dataset.max_context_tokens", None),
    ("load.ramp", "0s"),
    ("load.agentic.burst", False),
)
"""Keys that could change the trace or its start, with the values that leave it unchanged."""
_ENDS = ("load.requests", "load.duration", "load.min_duration")
"""If any of these is set, the user determines the length of the run."""
_UNCHECKED_KEYS = ("workers.max", *_ENDS)
"""Keys that the scenario sets but does not check like the others."""
_FAST_WARMUP = 1
"""Number of warmup requests in the fast mode. It conforms to the rules as well."""


def with_agentx(data: Mapping[str, Any]) -> Json:
    """Return the config as written, plus missing keys of the scenario."""
    completed: Any = data
    has_end = any(value_at(data, key.split(".")) is not None for key in _ENDS)
    for key, value in FIXED:
        if value_at(data, key.split(".")) is None and not (has_end and key in _ENDS):
            completed = with_value(completed, key.split("."), value)
    return dict(completed)


def expected_keys() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the keys that the rules fix, with the conforming values in a finished config."""
    for key, value in (*FIXED, *UNTOUCHED):
        if key in _UNCHECKED_KEYS:
            continue
        has_fast_mode = key == "load.agentic.warmup_requests"
        yield key, (value, _FAST_WARMUP) if has_fast_mode else (value,)


def is_fast(config: Mapping[str, Any]) -> bool:
    """Return whether a finished config uses the fast mode."""
    return bool(value_at(config, ("load", "agentic", "warmup_requests")) == _FAST_WARMUP)


def deviations(config: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a run of a finished config does not conform, one line per key."""
    found = []
    duration = value_at(config, ("load", "duration"))
    if duration != (expected_length := "20m" if is_fast(config) else "1h"):
        found.append(f"load.duration {shown(duration)}, expected {expected_length}")
    for key, expected in expected_keys():
        is_met, text = key_outcome(config, key, expected)
        if not is_met:
            found.append(text)
    return found


def conformance(config: Mapping[str, Any]) -> str:
    """Return whether the finished config of a run with the scenario conforms, and why not."""
    found = deviations(config)
    text = f"scenario {NAMES[0]}, rules {RULES.name} ({RULES.version}, {RULES.source}): the config "
    return text + (f"does not conform: {'; '.join(found)}" if found else "conforms")


def key_outcome(config: Mapping[str, Any], key: str, expected: Sequence[Any]) -> tuple[bool, str]:
    """Return whether a key of a finished config conforms, and its value as text."""
    value = value_at(config, key.split("."))
    is_met, text = value in expected, f"{key} {shown(value)}"
    return is_met, text if is_met else f"{text}, expected {' or '.join(map(shown, expected))}"


def shown(value: Any) -> str:
    """Return a value as a config file shows it."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
