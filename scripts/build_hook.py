"""Completes a wheel or an sdist: the compiled steps (`compile_steps`) if there is a C compiler, the
commit, and links to the repository. A release sets REPOSITORY_URL, which is in no file."""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")
LAUNCHER = "aiperf_svc/adapters/jobs/_server_launcher"
"""Program that the compiled steps come with, on Linux."""
COMMIT = "aiperf_svc/_commit"
"""File with the commit of a build, which `aiperf-svc version --json` shows."""


class BuildHook(BuildHookInterface[Any]):
    """Called by hatchling for a wheel, an sdist and an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the commit, and the compiled steps to a wheel. Tag a wheel with compiled steps for
        this platform and any Python from 3.11 on."""
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
            build_data["artifacts"] += [*libraries, LAUNCHER]


class MetadataHook(MetadataHookInterface):
    """Called by hatchling for the description and the links on the package's page."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and the links. An sdist already contains them."""
        url = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        if "readme" not in metadata:
            text = Path(self.root, "README.md").read_text("utf-8")
            text = with_addresses(text, url, metadata["version"]) if url else text
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata.setdefault("urls", addresses(url) if url else {})


def addresses(url: str) -> dict[str, str]:
    """Return the URLs of a repository's pages by their labels on the package index."""
    return {
        "Source": url,
        "Documentation": f"{url}/tree/main/docs",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }


def with_addresses(text: str, url: str, version: str) -> str:
    """Return the README for pages outside the repository: links to files lead to the repository at
    the tag of the version."""

    def replaced(match: re.Match[str]) -> str:
        mark, label, path = match.groups()
        return f"{mark}{label}({url}/{'raw' if mark else 'blob'}/v{version}/{path})"

    return _LINK.sub(replaced, text)


def _commit(root: Path) -> str:
    """Return the commit of a checkout. An sdist contains the file already."""
    if not (root / ".git").exists():
        return ""
    command = ("git", "-C", str(root), "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
