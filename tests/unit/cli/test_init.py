"""`aiperf-svc init`: a project for a user's own repository."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import aiperf_svc
from aiperf_svc.cli import main as cli
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.recording import ROOT

FILES = {
    *("Pulumi.yaml", "README.md", "__main__.py", "requirements.txt", ".gitignore", "Containerfile"),
    *("stacks/Pulumi.bench-smoke.yaml", "stacks/schema.json"),
}


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_init_pins_this_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    assert _files(tmp_path) == FILES
    assert len(capsys.readouterr().out.splitlines()) == len(FILES)
    pinned = (tmp_path / "requirements.txt").read_text()
    assert pinned == f"aiperf-svc[stack]=={aiperf_svc.__version__}\n"
    assert f"=={aiperf_svc.__version__}\n" in (tmp_path / "Containerfile").read_text()
    assert len((tmp_path / "README.md").read_text().splitlines()) <= 10


def test_image_finds_kinds_where_ours_does(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    recipes = (tmp_path / "Containerfile", ROOT / "images" / "Containerfile")
    made, own = (re.findall(r"PYTHONPATH=(\S+)", each.read_text()) for each in recipes)
    assert made == own
    added = f"COPY kinds {own[0]}\n"
    assert added in (ROOT / "docs" / "workloads.md").read_text()


def test_project_has_the_settings_of_this_repository(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    made = yaml.safe_load((tmp_path / "Pulumi.yaml").read_text())
    own = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    keys = ("name", "stackConfigDir", "options", "config")
    assert [made[key] for key in keys] == [own[key] for key in keys]


def test_stack_file_is_ours_with_its_own_schema(tmp_path: Path) -> None:
    names = ("bench-100k", "bench-fio")
    assert cli.main(["init", str(tmp_path), *(f"--stack={name}" for name in names)]) == 0
    for name in names:
        made = (tmp_path / "stacks" / f"Pulumi.{name}.yaml").read_text().split("\n", 1)
        own = (ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text().split("\n", 1)
        assert (made[0], made[1]) == ("# yaml-language-server: $schema=schema.json", own[1])


def test_stack_file_has_its_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["init", str(tmp_path), "--stack", "bench-disaggregated"]) == 0
    own = ROOT / "stacks" / "disaggregated"
    made = tmp_path / "stacks" / "disaggregated"
    assert {path.name: path.read_text() for path in made.iterdir()} == {
        path.name: path.read_text() for path in own.iterdir()
    }
    monkeypatch.chdir(tmp_path)
    assert cli.main(["validate"]) == 0


def test_program_makes_the_stack(tmp_path: Path) -> None:
    assert cli.main(["init", str(tmp_path)]) == 0
    program = (tmp_path / "__main__.py").read_text()
    assert "declare_stack()" in program
    subprocess.run((sys.executable, "-m", "py_compile", tmp_path / "__main__.py"), check=True)


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == ExitCode.BAD_CONFIG
    assert "already contains README.md; nothing was written" in capsys.readouterr().err
    assert _files(tmp_path) == {"README.md"}


def test_unknown_stack_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", str(tmp_path), "--stack", "bench-smok"]) == ExitCode.BAD_CONFIG
    assert "did you mean bench-smoke?" in capsys.readouterr().err
    assert _files(tmp_path) == set()
