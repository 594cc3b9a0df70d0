"""Which of several targets a request goes to: each in turn by the index of its credit, so that all
turns of a conversation go to one target. A worker may choose another by its requests in flight."""

from aiperf_svc.config.benchmark import BenchmarkConfig


def shift_of(config: BenchmarkConfig) -> int:
    """Return what is added to an index, by the seed, to find the target that is in turn."""
    return config.random_seed % len(config.endpoint.all_urls)
