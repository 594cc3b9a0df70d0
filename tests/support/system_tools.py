"""System tools that tests of workloads need."""

import shutil

import pytest

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Folder of Debian's Python packages, which a virtual environment does not include."""


def needs(tool: str, package: str) -> None:
    """Skip the test if a tool is not installed."""
    if shutil.which(tool, path=SYSTEM_PATH) is None:
        pytest.skip(f"{tool} is not installed; it is in the Debian package {package}")
