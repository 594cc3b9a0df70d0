"""Values of one run that its config does not have.

The runner sets them, and every process and pod of the run gets them as environment variables. A new
value is a field here, its place in the runner, and its use in a service: what lies between passes
on the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """Values of one run. The variable of `is_held` is AIPERF_HELD."""

    is_held: bool = False
    """Whether the load waits for a start that it shares with other runs."""
    is_resumed: bool = False
    """Whether trials of the experiment have ended before, in the same folder."""
    member: str = ""
    """Target or cluster that the run measures beside others: its folder of the bucket."""
    upload_into: str = ""
    """Folder of the bucket for the trials, if other processes or pods run some of them; the runner
    then uploads the files of the whole experiment."""
    cli_command: str = ""
    """Command line of the run, which is kept with its results."""

    def bucket_folder(self, own: str) -> str:
        """Return the folder of the bucket for this run, which is `own` if it shares none,
        of a member in a folder of its own."""
        return self.upload_into or "/".join(filter(None, (self.member, own)))

    def environment(self) -> dict[str, str]:
        """Return the variables of the values that differ from the defaults."""
        values = {_variable(each.name): getattr(self, each.name) for each in fields(self)}
        return {name: "1" if value is True else value for name, value in values.items() if value}

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Return the values that these variables have."""
        found: dict[str, Any] = {}
        for each in fields(cls):
            written = environ.get(_variable(each.name), "")
            found[each.name] = written == "1" if isinstance(each.default, bool) else written
        return cls(**found)


def _variable(name: str) -> str:
    return f"AIPERF_{name.removeprefix('is_').upper()}"
