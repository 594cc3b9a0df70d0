"""Options of a run that do not affect the measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Flags are read without the libraries that displays need.
    from aiperf_svc.adapters.terminal.screens import Ui


@dataclass(frozen=True, kw_only=True)
class OtlpTarget:
    """A receiver of OTLP metrics."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of each request, such as a key."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Display options of a run, and values that only its processes receive."""

    ui: "Ui" = "auto"
    json: bool = False
    """Print one JSON object on standard output; all text for people goes to standard error."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variables only for the services that need them, e.g. the target's API key."""
    resume: Path | None = None
    """Folder of the experiment to resume."""
    otlp: OtlpTarget | None = None
    """Where the metrics of the run are sent."""
    junit: Path | None = None
    """File for the results as test cases."""
    metrics_address: tuple[str, int] | None = None
    """Host and port of the metrics page that this command serves."""
    cli_command: str = ""
    """Command line of the run, stored with its results."""
    verbose: bool = False
    """Write debug lines to the logs."""


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """How a stack is run and removed."""

    run: RunOptions
    yes: bool = False
    """True to skip the confirmation."""
    keep: bool = False
    """True to keep the stack, unless the user stops the run."""
    keep_on_failure: bool = False
    timeout_s: float | None = None
    """Time limit from the start of `up` to the results; the teardown is not limited."""
