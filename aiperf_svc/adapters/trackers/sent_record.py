"""What of an artifact folder trackers have, so that sending it again adds only what is missing."""

from pathlib import Path
from typing import Final

import msgspec

from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.domain.errors import EnvironmentProblem

NAME: Final = "trackers.json"


class Sent(msgspec.Struct, frozen=True):
    """A run that a tracker has taken whole."""

    into: str
    """The tracker, and the project or experiment there."""
    run_id: str
    """Id of the run that was measured."""
    where: str
    """The run in the tracker, as it is printed."""


class SentRecord:
    """The record of one run's folder."""

    def __init__(self, folder: Path) -> None:
        """Raises EnvironmentProblem if there is a record that cannot be read."""
        self.path = folder / NAME
        try:
            self._sent = msgspec.json.decode(self.path.read_bytes(), type=list[Sent])
        except FileNotFoundError:
            self._sent = []
        except (OSError, msgspec.DecodeError) as error:
            raise EnvironmentProblem(
                f"{self.path}: cannot be read: {error}; without it everything is sent again"
            ) from error

    def find(self, into: str, run_id: str) -> str | None:
        """Return where a tracker has the run; None if it does not have it."""
        found = (each.where for each in self._sent if (each.into, each.run_id) == (into, run_id))
        return next(found, None)

    def add(self, into: str, run_id: str, where: str) -> None:
        """Record that a tracker has the run. Raises EnvironmentProblem for a failure of the
        disk."""
        self._sent.append(Sent(into, run_id, where))
        write_file(self.path, lambda: msgspec.json.format(msgspec.json.encode(self._sent)))
