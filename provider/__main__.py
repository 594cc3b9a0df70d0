"""Serves the component `aiperf:Benchmark` to Pulumi programs in other languages."""

from aiperf_svc.stack.provider import main

if __name__ == "__main__":
    main()
