"""What a user chooses about a run that is not part of the measurement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is shown, and what only its processes may know."""

    ui: Literal["auto", "rich", "plain", "none"] = "auto"
    """`auto`: rich on a terminal, else plain."""
    json: bool = False
    """One JSON object on standard output; everything for people goes to standard error."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the workers only, e.g. the target's API key."""
    cli_command: str = ""
    """How the run was asked for; kept with the results."""
    verbose: bool = False
    """Debug lines in the logs."""
