"""Completes a wheel or an sdist: the compiled steps (`compile_steps`), where a C compiler is there,
and the commit."""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "aiperf_svc/_commit"
"""File with the commit of a build. `aiperf-svc version --json` shows it."""


class BuildHook(BuildHookInterface[Any]):
    """Called by hatchling for a wheel, an sdist and an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the commit; to a wheel the compiled steps. Name what the wheel then needs: this
        platform, any Python from 3.11 on."""
        root = Path(self.root)
        commit = _commit(root)
        if commit and version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            path = Path(self._folder.name, "commit")
            path.write_text(f"{commit}\n")
            build_data["force_include"][str(path)] = COMMIT
        if self.target_name != "wheel":
            return
        subprocess.run([sys.executable, root / "scripts" / "compile_steps.py"], check=True)
        libraries = [str(path.relative_to(root)) for path in root.glob("aiperf_svc/**/_*.abi3.so")]
        if libraries:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["artifacts"] += libraries


def _commit(root: Path) -> str:
    """Return the commit of a checkout. An sdist has the file already."""
    if not (root / ".git").exists():
        return ""
    command = ("git", "-C", str(root), "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
