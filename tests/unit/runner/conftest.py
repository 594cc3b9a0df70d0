"""Fixtures of the runner's tests."""

from pathlib import Path

import pytest

from tests.support.fake_stack_run import Played, make_played


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return make_played(tmp_path, monkeypatch)
