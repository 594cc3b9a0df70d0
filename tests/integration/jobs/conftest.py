"""The place of an experiment for each test."""

from pathlib import Path

import pytest

from tests.support.index_place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
