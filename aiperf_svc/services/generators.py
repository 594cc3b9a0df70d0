"""Makes the load generator that a load needs."""

from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.endpoints.base import choices_asked_for
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.load.abandonment import abandonment_of
from aiperf_svc.core.responses.first_tokens import FirstTokens
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.services.load_generator import LoadGenerator
from aiperf_svc.services.prefill_generator import PrefillGenerator
from aiperf_svc.services.query_generator import QueryGenerator


def generator_of(config: BenchmarkConfig, **given: Any) -> LoadGenerator:
    """Return a generator for the load of a config, with these arguments of every generator."""
    load = config.load
    if load.samples_per_query > 1:
        return QueryGenerator(**given)
    given["abandonment"] = abandonment_of(config)
    given["turn_gap_ns"] = load.user_centric.turn_gap_ns if load.user_centric else 0
    if not load.limits_prefill:
        return LoadGenerator(**given)
    format = ResponseFormat(
        endpoint_of(config.endpoint),
        is_streaming=config.endpoint.streaming,
        keeps_text=False,
        choices=choices_asked_for(config.endpoint),
    )
    return PrefillGenerator(first_tokens=FirstTokens(format), **given)
