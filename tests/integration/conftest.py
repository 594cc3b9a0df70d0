"""Fixtures of several modules."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bucket import Store, serving

STORED = Path(__file__).parents[1] / "data" / "results.tar.xz"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the stored results, which the tests of a module may change."""
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def bucket_server() -> Iterator[Store]:
    with serving() as store:
        yield store
