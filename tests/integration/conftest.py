"""Fixtures that several modules share."""

import ssl
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bucket import Store, serving

STORED = Path(__file__).parents[1] / "data" / "results.tar.xz"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the stored results, so that the tests of a module may change them."""
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def bucket_server() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture
def server_side(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def trust(certificate: tuple[Path, Path]) -> dict[str, Any]:
    """Return settings of an endpoint that trusts the server's certificate."""
    return {"tls": {"ca_file": str(certificate[0])}}
