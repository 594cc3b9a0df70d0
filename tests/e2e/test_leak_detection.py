"""The leak check of tests finds exactly the planted leak of each kind."""

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiperf_svc.adapters.storage import folders
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.running_command import Command, private_folders, wait_gone


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Path]:
    """Plant leaks, yield the file with the ids of their processes, and end those at the end."""
    path = tmp_path / "planted"
    yield path
    if not path.exists():
        return
    for pid in map(int, path.read_text().split()):
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        wait_gone(handle)


def test_exactly_the_planted_leaks_are_found(tmp_path: Path, planted: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with running(MockServerConfig(ttft="10ms", tokens=2)) as mock:
        plant = ("plant_leak", str(planted))
        load = ("--concurrency", "2", "--request-count", "200")
        command = Command(folder, mock.url, *load, preparation=plant)
        command.wait_for_requests(mock, 2)
        assert command.note_ports()
        summary = command.finish()
    assert summary["results"]["request_count"]["avg"] == 200, command.errors
    process, port, temporary, here = command.left_behind()
    pid, _ = planted.read_text().split()
    assert process == f"process {pid}"
    assert re.fullmatch(r"port 0100007F:[0-9A-F]+", port)
    assert (temporary, here) == ("file tmp/left", "file left")
    with pytest.raises(AssertionError, match=f"{process}, {port}, {temporary}, {here}"):
        command.assert_nothing_is_left()


def test_private_folder_that_no_run_holds_is_found(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))

    def found() -> set[Path]:
        return {path for path in private_folders() if path.parent == short_folder}

    with folders.private_folder() as held:
        assert held.parent == short_folder
        assert found() == set()
    left = short_folder / f"{folders.PREFIX}left"
    left.mkdir()
    assert found() == {left}
    (left / "lock").touch()
    assert found() == {left}
