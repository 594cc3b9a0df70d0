"""The Pulumi components of a stack. Each translates a part of a plan into Kubernetes objects.

`Benchmark` is for users' programs, `declare_stack` is the complete program of this project."""

from aiperf_svc.stack.component import Benchmark, BenchmarkArgs, declare_stack

__all__ = ["Benchmark", "BenchmarkArgs", "declare_stack"]
