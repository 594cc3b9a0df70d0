"""Selects the hooks to call at a time, and evaluates the response of a server."""

from typing import Literal
from urllib.parse import urlsplit

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.hooks import Hook
from aiperf_svc.domain.outcomes import Phase

When = Literal["before", "after"]

HINTS = {
    "/reset_prefix_cache": "vLLM has it with VLLM_SERVER_DEV_MODE=1; SGLang's is /flush_cache",
    "/start_profile": "vLLM has it when its profiler is configured",
    "/stop_profile": "vLLM has it when its profiler is configured",
}
"""Hints for servers without such a path."""
NOT_FOUND = (404, 405)


def hooks_at(endpoint: Endpoint, when: When, phase: Phase, *, is_first: bool) -> tuple[Hook, ...]:
    """Return the hooks before or after a phase. `is_first`: no other phase precedes
    it."""
    names = [phase.name.lower(), *(["load"] if is_first else [])]
    return tuple(hook for hook in endpoint.all_hooks if getattr(hook, when) in names)


def origins(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the distinct server URLs without paths."""
    parts = [urlsplit(url) for url in endpoint.all_urls]
    found = (f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in parts)
    return tuple(dict.fromkeys(found))


def first_phase(config: BenchmarkConfig) -> Phase:
    return Phase.WARMUP if config.load.has_warmup else Phase.PROFILING


def longest_before_load_ns(config: BenchmarkConfig) -> int:
    """Return the longest time of the hooks before the first phase."""
    endpoint = config.endpoint
    hooks = hooks_at(endpoint, "before", first_phase(config), is_first=True)
    once = sum(hook.timeout or endpoint.request_timeout for hook in hooks)
    return once * len(origins(endpoint))


def problem_of(hook: Hook, status: int, message: str) -> str:
    """Return the problem of a response; empty for a success. `message` is the server's."""
    if 200 <= status < 300:
        return ""
    problem = f"status {status}" + (f": {message}" if message else "")
    hint = HINTS.get(hook.path.partition("?")[0], "") if status in NOT_FOUND else ""
    return f"{problem} ({hint})" if hint else problem
