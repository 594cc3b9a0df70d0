"""What the tests of whole runs share."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL at which nobody listens, and nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path. Sockets have short paths only: with a longer TMPDIR a run's
    private folder is made in /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        yield Path(folder)
