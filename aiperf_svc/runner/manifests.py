"""The manifest of a finished local run, brought up to date when the last process is gone.

The records manager takes stock while it and others still write their logs.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports.manifest import NAME, TEMPORARY_SUFFIX, Manifest, build_manifest


def refresh(folder: Path) -> None:
    """Renew what has changed in a folder since its manifest; nothing without a manifest."""
    path = folder / NAME
    # The records manager has said what was wrong with this folder, if anything was.
    with suppress(OSError):
        known = msgspec.json.decode(path.read_bytes(), type=Manifest)
        manifest = build_manifest(folder, known.run_id, known=known)
        part = path.with_name(NAME + TEMPORARY_SUFFIX)
        part.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        part.replace(path)
