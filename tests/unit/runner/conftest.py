"""Fixtures of the runner's tests."""

from pathlib import Path

import pytest

from tests.support.fake_stack_run import FakeStackRun, make_played


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStackRun:
    return make_played(tmp_path, monkeypatch)
