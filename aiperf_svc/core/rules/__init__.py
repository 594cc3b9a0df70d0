"""Rules of benchmarks, checked on finished runs."""

RULES = ("mlperf-endpoints-1.0", "agentx-2026-08")
"""Names of the rule sets."""
