"""`provenance.json`: hardware and software of client and target."""

from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.core.results.provenance import NAME, Provenance


def write_provenance(folder: Path, found: Provenance) -> None:
    """Write the file. Raises EnvironmentProblem."""
    content = json_file(found)
    write_file(folder / NAME, lambda: content)


def read_provenance(folder: Path) -> Provenance | None:
    """Return the facts of a run; None if its folder has none, as in earlier versions."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Provenance)
    except (OSError, msgspec.MsgspecError):
        return None
