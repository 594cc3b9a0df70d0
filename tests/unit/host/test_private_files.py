"""Permissions of new files."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiperf_svc.adapters.host.private_files import private_files, use_user_umask, user_mask


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    mask = os.umask(0o022)
    yield
    assert os.umask(mask) == 0o022


def mode_in(folder: Path, name: str) -> int:
    (folder / name).touch()
    return stat.S_IMODE((folder / name).stat().st_mode)


def test_new_files_are_private_and_umask_is_restored(tmp_path: Path) -> None:
    assert user_mask() == -1
    with private_files():
        assert user_mask() == 0o022
        assert mode_in(tmp_path, "own") == 0o600
        with use_user_umask():
            assert mode_in(tmp_path, "shared") == 0o644
        assert mode_in(tmp_path, "own again") == 0o600
    assert user_mask() == -1
    assert mode_in(tmp_path, "after") == 0o644
    with use_user_umask():
        assert mode_in(tmp_path, "as before") == 0o644
