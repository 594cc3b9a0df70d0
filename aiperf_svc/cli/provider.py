"""The command `pulumi-resource-aiperf`: the component's provider for programs in other languages.
The package always contains the command; serving the component needs the extra `stack`."""

import sys

from aiperf_svc.adapters.pulumi.project import check_packages
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode


def main() -> int:
    """Serve the component to Pulumi; return the exit code."""
    try:
        check_packages()
    except EnvironmentProblem as error:
        print(f"error: {error}", file=sys.stderr)
        return int(ExitCode.ERROR)
    from aiperf_svc.stack.provider import main as serve

    serve()
    return int(ExitCode.OK)
