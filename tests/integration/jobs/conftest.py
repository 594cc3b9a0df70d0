"""Fixture of an experiment with two shapes."""

from pathlib import Path

import pytest

from tests.support.index_place import TwoShapes


@pytest.fixture
def place(tmp_path: Path) -> TwoShapes:
    return TwoShapes(tmp_path)
