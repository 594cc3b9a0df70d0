"""Tools of this machine that tests of workloads need."""

import shutil

import pytest

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where Debian's packages are. The python3 of a virtual environment has none of theirs."""


def needs(tool: str, package: str) -> None:
    """Skip where a tool is not installed."""
    if shutil.which(tool, path=SYSTEM_PATH) is None:
        pytest.skip(f"{tool} is not here: Debian package {package}")
