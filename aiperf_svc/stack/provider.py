"""The component `aiperf:Benchmark` for Pulumi programs in other languages.

Pulumi finds its provider as the command `pulumi-resource-aiperf` on PATH, which the package has, or
as the folder `provider/` of the repository.
"""

from pulumi.provider.experimental import component_provider_host

from aiperf_svc import __version__
from aiperf_svc.stack.component import Benchmark


def main() -> None:
    """Serve the component to the engine whose address is an argument."""
    component_provider_host([Benchmark], name="aiperf", version=__version__)
