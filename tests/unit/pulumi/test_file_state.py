"""The repair of a state that a kill has damaged."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiperf_svc.adapters.pulumi import state as file_state
from aiperf_svc.adapters.pulumi.state import folder_of, repair, without_attributes

WHOLE = b'{"version": 3, "checkpoint": {}}'
ATTRIBUTES = b'{"user.content_type": "text/plain", "md5": "AA=="}'


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Write a state with a stack `s`, another one, and a lock."""
    stacks, locks = tmp_path / ".pulumi/stacks/aiperf", lock_folder(tmp_path)
    for folder in (stacks, locks, tmp_path / ".pulumi/backups/aiperf/s"):
        folder.mkdir(parents=True)
    for path in (stacks / "s.json", stacks / "other.json", locks / "1.json"):
        path.write_bytes(WHOLE)
        path.with_name(f"{path.name}.attrs").write_bytes(ATTRIBUTES)
    (tmp_path / ".pulumi/meta.yaml").write_text("version: 1")
    (tmp_path / ".pulumi/meta.yaml.attrs").write_bytes(ATTRIBUTES)
    return tmp_path


def lock_folder(state: Path) -> Path:
    return state / ".pulumi/locks/organization/aiperf/s"


def contents(state: Path) -> dict[str, bytes]:
    paths = (path for path in state.rglob("*") if path.is_file())
    return {str(path.relative_to(state / ".pulumi")): path.read_bytes() for path in paths}


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_readable_state_is_unchanged(state: Path) -> None:
    before = contents(state)
    assert repair(state, project="aiperf", stack="s") == ()
    assert contents(state) == before
    assert repair(state / "nowhere", project="aiperf", stack="s") == ()


@pytest.mark.parametrize("torn", [b"", b'{"user.content_ty'])
@pytest.mark.parametrize(
    "name",
    [
        "meta.yaml.attrs",
        "stacks/aiperf/s.json.attrs",
        "stacks/aiperf/other.json.attrs",
        "locks/organization/aiperf/s/1.json.attrs",
        "backups/aiperf/s/s.1.json.attrs",
    ],
)
def test_only_broken_attributes_are_removed(state: Path, name: str, torn: bytes) -> None:
    before = contents(state)
    (state / ".pulumi" / name).write_bytes(torn)
    (note,) = repair(state, project="aiperf", stack="s")
    assert name in note
    before.pop(name, None)
    assert contents(state) == before


def test_only_abandoned_files_are_removed(state: Path) -> None:
    stacks, locks = state / ".pulumi/stacks/aiperf", lock_folder(state)
    for folder, old_s in ((stacks, file_state.OLD_S), (locks, file_state.LOCK_OLD_S)):
        for name in ("fileblob1", "fileblob2"):
            (folder / name).touch()
        age(folder / "fileblob1", old_s + 1.0)
    assert len(repair(state, project="aiperf", stack="s")) == 2
    assert [path.name for path in state.rglob("fileblob*")] == ["fileblob2", "fileblob2"]


@pytest.mark.parametrize("broken", [b"", WHOLE[:-3]])
def test_broken_checkpoint_becomes_the_newest_backup(state: Path, broken: bytes) -> None:
    stacks, backups = state / ".pulumi/stacks/aiperf", state / ".pulumi/backups/aiperf/s"
    (stacks / "s.json").write_bytes(broken)
    for path, number in ((backups / "s.1.json", 1), (stacks / "s.json.bak", 2)):
        path.write_text(json.dumps({"number": number}))
    age(backups / "s.1.json", 10.0)
    (backups / "s.3.json").write_bytes(broken)
    (note,) = repair(state, project="aiperf", stack="s")
    assert "was replaced by " in note
    assert "s.json.bak, the version before" in note
    assert json.loads((stacks / "s.json").read_bytes()) == {"number": 2}
    assert (stacks / "s.json.broken").read_bytes() == broken
    assert repair(state, project="aiperf", stack="s") == ()


def test_checkpoint_without_backup_is_unchanged(state: Path) -> None:
    checkpoint = state / ".pulumi/stacks/aiperf/s.json"
    checkpoint.write_bytes(b"")
    assert repair(state, project="aiperf", stack="s") == ()
    assert checkpoint.read_bytes() == b""


def test_folder_url_is_absolute_without_attributes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/not/of/the/passwd/entry")
    entry = SimpleNamespace(pw_dir="/home/of-me")
    monkeypatch.setattr(file_state.pwd, "getpwuid", lambda _: entry)  # type: ignore[attr-defined]
    for url, folder in {
        "file:///state": "/state",
        "file://~/state": "/home/of-me/state",
        "file://./state": str(tmp_path / "state"),
        "file:///state?metadata=skip": "/state",
    }.items():
        assert without_attributes(url) == f"file://{folder}?metadata=skip"
        assert folder_of(url) == Path(folder)
    kept = without_attributes("file:///state?no_tmp_dir=false")
    assert kept == "file:///state?no_tmp_dir=false&metadata=skip"
    for url in ("s3://bucket?region=x", "https://api.pulumi.com"):
        assert (without_attributes(url), folder_of(url)) == (url, None)


def test_home_is_found_like_the_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-the-variable")
    entry = SimpleNamespace(pw_dir="/home/of-the-entry")
    monkeypatch.setattr(file_state.pwd, "getpwuid", lambda _: entry)  # type: ignore[attr-defined]
    assert file_state.user_home() == Path("/home/of-the-entry")

    def no_entry(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(file_state.pwd, "getpwuid", no_entry)  # type: ignore[attr-defined]
    assert file_state.user_home() == Path("/home/of-the-variable")
