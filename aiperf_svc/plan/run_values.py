"""Values of one run that its config does not have.

The runner sets them, and every process and pod of the run gets them as environment variables. A new
value is a field here, its place in the runner, and its use in a service: what lies between passes
on the whole.
"""

from collections.abc import Mapping
from typing import Self

import msgspec


class RunValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one run. The variable of `is_held` is AIPERF_HELD."""

    is_held: bool = False
    """Whether the load waits for a start that it shares with other runs."""
    is_resumed: bool = False
    """Whether trials of the experiment have ended before, in the same folder."""
    upload_into: str = ""
    """Folder of the bucket for the trials, if other processes or pods run some of them; the runner
    then uploads the files of the whole experiment."""
    cli_command: str = ""
    """Command line of the run, which is kept with its results."""

    def environment(self) -> dict[str, str]:
        """Return the variables of the values that differ from the defaults."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {
            _variable(name): "1" if value is True else str(value) for name, value in values if value
        }

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Return the values that these variables have."""
        variables = {name: _variable(name) for name in cls.__struct_fields__}
        found = {name: environ[each] for name, each in variables.items() if each in environ}
        return msgspec.convert(found, cls, strict=False)


def _variable(name: str) -> str:
    return f"AIPERF_{name.removeprefix('is_').upper()}"
