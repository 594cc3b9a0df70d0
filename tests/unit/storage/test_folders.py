"""The private folder is removed with its run. The artifact folder is new and stays."""

import errno
import json
import os
import shutil
import stat
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aiperf_svc.adapters.storage import folders
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

NOW = datetime(2026, 11, 21, 5, 31, 36, tzinfo=UTC)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the folder for temporary folders in this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "MAX_SOCKET_PATH", 1000)
    return tmp_path


def test_only_the_user_can_enter_the_private_folder(temporary: Path) -> None:
    with folders.private_folder() as folder:
        assert folder.parent == temporary
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_private_folder_is_removed_after_an_error_too(temporary: Path) -> None:
    def fail() -> None:
        with folders.private_folder() as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / "file").touch()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert list(temporary.iterdir()) == []


def test_socket_paths_fit_with_a_long_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with folders.private_folder() as folder:
        assert len(f"{folder}/raw_direct-record-processor-9999") <= 107
    assert list(deep.iterdir()) == []


def test_folder_with_partial_results_is_found_by_run(tmp_path: Path) -> None:
    whole, broken = (folders.make_dated_folder(tmp_path, name) for name in "ab")
    with folders.collecting(whole, "run"):
        assert folders.unfinished(tmp_path, "run") == whole

    def fail() -> None:
        with folders.collecting(broken, "run"):
            raise EnvironmentProblem("broke off")

    with pytest.raises(EnvironmentProblem):
        fail()
    assert folders.unfinished(tmp_path, "run") == broken
    assert folders.unfinished(tmp_path, "another") is None
    assert list(whole.iterdir()) == []


def test_the_runs_of_a_collected_experiment_are_linked(tmp_path: Path) -> None:
    folder = folders.make_dated_folder(tmp_path, "a")
    trial = {"number": 3, "repetition": 1, "parameters": {}, "state": "done", "reason": ""}
    content = {"schema_version": "experiment/1", "trials": [trial | {"folder": "003-r1"}]}
    with folders.collecting(folder, "run"):
        (folder / "trials" / "003-r1").mkdir(parents=True)
        (folder / "trials" / "003-r1" / "report.html").write_text("it")
        (folder / "experiment.json").write_text(json.dumps(content))
    assert (folder / "profile_runs" / "run_0003" / "report.html").read_text() == "it"


@pytest.mark.parametrize("place", ["", "shapes/1"])
def test_experiment_with_results_to_fetch_keeps_its_file(tmp_path: Path, place: str) -> None:
    folder = folders.make_dated_folder(tmp_path, "a")
    content = {"schema_version": "experiment/1", "trials": []}
    (folder / "experiment.json").write_text(json.dumps(content))
    own = folders.make_folder(folder / place)
    with pytest.raises(EnvironmentProblem), folders.collecting(own, "run"):
        raise EnvironmentProblem("broke off")
    assert not folders.remove_if_empty(folder)
    assert (folder / "experiment.json").exists()


def test_folder_of_a_killed_runner_is_removed(temporary: Path) -> None:
    with folders.private_folder() as folder:
        left = temporary / f"{folders.PREFIX}left"
        shutil.copytree(folder, left)
    folders.remove_stale()
    assert not left.exists()


def test_folder_of_a_running_benchmark_is_kept(temporary: Path) -> None:
    with folders.private_folder() as first, folders.private_folder() as second:
        assert first != second
        folders.remove_stale()
        assert first.exists()
        assert second.exists()


def test_new_folder_without_lock_is_kept(temporary: Path) -> None:
    (temporary / f"{folders.PREFIX}new").mkdir()
    folders.remove_stale()
    assert (temporary / f"{folders.PREFIX}new").exists()


def test_lock_is_removed_last(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception):
        pass

    def kill(path: Path, **_: object) -> None:
        raise KilledError(path)

    left = temporary / f"{folders.PREFIX}left"
    (left / "pulumi").mkdir(parents=True)
    (left / "lock").touch()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", kill)
        with pytest.raises(KilledError, match="pulumi"):
            folders._remove(left)
    assert folders.remove_stale() == 1
    assert list(temporary.iterdir()) == []


def test_old_folder_without_lock_is_removed(temporary: Path) -> None:
    left = temporary / f"{folders.PREFIX}left"
    left.mkdir()
    long_ago = time.time() - 2 * folders.MAKING_S
    os.utime(left, (long_ago, long_ago))
    assert folders.remove_stale() == 1
    assert not left.exists()


def test_folder_with_an_inherited_lock_is_kept(temporary: Path) -> None:
    with folders.locked_private_folder() as (folder, lock):
        assert lock is not None
        inherited = os.dup(lock)
        left = temporary / f"{folders.PREFIX}left"
        folder.rename(left)
    try:
        assert folders.remove_stale() == 0
    finally:
        os.close(inherited)
    assert folders.remove_stale() == 1


def test_nothing_is_removed_through_a_link(temporary: Path) -> None:
    own = temporary / "own"
    own.mkdir()
    (own / "lock").touch()
    (temporary / f"{folders.PREFIX}link").symlink_to(own)
    folders.remove_stale()
    assert (own / "lock").exists()


def test_temporary_folder_that_cannot_be_made_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "nowhere"))
    with (
        pytest.raises(EnvironmentProblem, match=r"nowhere: No such file.*TMPDIR"),
        folders.private_folder(),
    ):
        pass


def test_artifact_folder_has_name_and_time(tmp_path: Path) -> None:
    folder = folders.make_dated_folder(tmp_path / "a" / "b", "bench", now=NOW)
    assert folder == tmp_path / "a" / "b" / "bench-20261121T053136Z"
    assert folder.is_dir()


def test_only_empty_artifact_folders_are_removed(tmp_path: Path) -> None:
    empty, logged, full = (folders.make_dated_folder(tmp_path, name) for name in "abc")
    folders.make_folder(empty)
    (folders.make_folder(logged) / "logs" / "worker.log").touch()
    (full / "config.yaml").touch()
    assert [folders.remove_if_empty(each) for each in (empty, logged, full)] == [True, False, False]
    assert sorted(tmp_path.iterdir()) == [logged, full]
    assert not folders.remove_if_empty(tmp_path / "none")


def test_two_runs_of_one_second_have_two_folders(tmp_path: Path) -> None:
    made = {folders.make_dated_folder(tmp_path, "bench", now=NOW) for _ in range(3)}
    assert {path.name for path in made} == {
        "bench-20261121T053136Z",
        "bench-20261121T053136Z-2",
        "bench-20261121T053136Z-3",
    }


@pytest.mark.parametrize("parent", ["file", "file/below"])
def test_file_in_the_way_is_a_clear_error(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*file.*--artifact-dir"):
        folders.make_dated_folder(tmp_path / parent, "bench")


def test_folder_error_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        folders.make_dated_folder(tmp_path, "bench")
