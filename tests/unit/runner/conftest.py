"""Fixtures of the runner's tests."""

from pathlib import Path

import pytest
from played_stack import Played, make_played


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return make_played(tmp_path, monkeypatch)
