"""Values of one run that its config does not have.

The runner sets them, and every process and pod of the services receives them as environment
variables. The services in the indexes of Jobs do not: each index is a local run with the defaults.

To add a value, add a field here, set it in `SessionResults.work`, which is the same for runs on
this machine and on clusters, and use it in a service. All code in between passes the whole object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """Values of one run, texts and booleans. The variable of `is_held` is AIPERF_HELD."""

    is_held: bool = False
    """Whether the load waits for a common start with other runs."""
    is_resumed: bool = False
    """Whether earlier trials of the experiment have ended in the same folder."""
    member: str = ""
    """Target or cluster of the run if there are several; it has its own folder of the bucket."""
    upload_into: str = ""
    """Folder of the bucket for the trials, if other processes or pods run some of them. The runner
    then uploads the files of the whole experiment."""
    cli_command: str = ""
    """Command line of the run, which is stored with its results; empty for plain `pulumi up`."""

    def bucket_folder(self, own: str) -> str:
        """Return the folder of the bucket for this run: `own`, below the member's folder if there
        are several members, unless the run shares a folder."""
        return self.upload_into or "/".join(filter(None, (self.member, own)))

    def environment(self) -> dict[str, str]:
        """Return the variables of all values that differ from the defaults."""
        values = {_variable(each.name): getattr(self, each.name) for each in fields(self)}
        return {name: "1" if value is True else value for name, value in values.items() if value}

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Return the values of these variables."""
        found: dict[str, Any] = {}
        for each in fields(cls):
            written = environ.get(_variable(each.name), "")
            found[each.name] = written == "1" if isinstance(each.default, bool) else written
        return cls(**found)


def _variable(name: str) -> str:
    return f"AIPERF_{name.removeprefix('is_').upper()}"
