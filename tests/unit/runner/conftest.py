"""Fixtures of the runner's tests."""

from pathlib import Path

import pytest

from tests.support.fake_stack_run import FakeStackRun, make_stack_run


@pytest.fixture
def stack_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeStackRun:
    return make_stack_run(tmp_path, monkeypatch)
