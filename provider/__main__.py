"""Serves the component `aiperf:Benchmark` to Pulumi programs in other languages."""

from pulumi.provider.experimental import component_provider_host

import aiperf_svc
from aiperf_svc.stack import Benchmark

if __name__ == "__main__":
    component_provider_host([Benchmark], name="aiperf", version=aiperf_svc.__version__)
