"""Fixture of an experiment with two shapes."""

from pathlib import Path

import pytest

from tests.support.two_shapes import TwoShapes


@pytest.fixture
def shapes(tmp_path: Path) -> TwoShapes:
    return TwoShapes(tmp_path)
