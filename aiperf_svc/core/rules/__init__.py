"""Rules of benchmarks, checked on finished runs."""

RULES = ("mlperf-endpoints-1.0",)
"""Names of the rule sets."""
