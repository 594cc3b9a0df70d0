"""Fixtures of tests that run the whole command."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def nobody() -> Iterator[str]:
    """Return a URL with a port on which nothing listens or will listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path. Socket paths are limited: with a longer TMPDIR, a run
    creates its private folder in /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        yield Path(folder)
