"""The component `aiperf:Benchmark` for Pulumi programs in other languages.

Pulumi finds its provider as the command `pulumi-resource-aiperf` on PATH, which the package
installs, or in the folder `provider/` of the repository.
"""

import sys

import pulumi
from pulumi.provider import ConstructResult
from pulumi.provider import main as serve
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.server import ComponentInitError

from aiperf_svc import __version__
from aiperf_svc.stack.component import Benchmark


class BenchmarkProvider(ComponentProvider):
    """Serves the component, and reports only the message of its RunError.

    The SDK puts a traceback into the message of each error of a component, but for an
    InputPropertiesError.
    """

    def __init__(self) -> None:
        super().__init__([Benchmark], name="aiperf", version=__version__)

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: pulumi.Inputs,
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Create the component. Raises InputPropertiesError for a RunError."""
        try:
            return super().construct(name, resource_type, inputs, options)
        except ComponentInitError as error:
            if isinstance(error.inner, pulumi.RunError):
                # Without a list of properties the SDK fails.
                raise pulumi.InputPropertiesError(str(error.inner), []) from error
            raise


def main() -> None:
    """Serve the component to the engine at the address in the arguments."""
    serve(BenchmarkProvider(), sys.argv[1:])
