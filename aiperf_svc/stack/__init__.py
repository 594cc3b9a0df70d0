"""The Pulumi components of a stack: each translates a part of a plan into Kubernetes objects.

`Benchmark` is for the programs of users, `declare_stack` is the whole of this project's own."""

from aiperf_svc.stack.component import Benchmark, BenchmarkArgs, declare_stack

__all__ = ["Benchmark", "BenchmarkArgs", "declare_stack"]
