"""Shared by the unit tests: pages with generated tables."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def assert_printed(request: pytest.FixtureRequest) -> Callable[[Path, str, str], None]:
    """Return a function that compares the text after a mark in a page with the tables generated for
    it. With --write-samples it writes them."""

    def check(path: Path, mark: str, tables: str) -> None:
        prose, found_mark, printed = path.read_text().partition(mark)
        assert found_mark, f"{path} has no line {mark!r}"
        expected = "\n" + tables
        if request.config.getoption("--write-samples"):
            path.write_text(prose + mark + expected)
            return
        assert printed == expected, f"run: pytest --write-samples {request.node.nodeid}"

    return check
