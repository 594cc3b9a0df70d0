"""The package, the image, the changelog and the schemas have the same version."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aiperf_svc
from aiperf_svc.adapters.host import build
from aiperf_svc.cli import main as cli

ROOT = Path(__file__).parents[2]


def test_changelog_begins_with_this_version() -> None:
    sections = re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == aiperf_svc.__version__


def test_provider_needs_this_version() -> None:
    needed = (ROOT / "provider" / "requirements.txt").read_text()
    assert needed == f"aiperf-svc[stack]=={aiperf_svc.__version__}\n"


def test_version_as_json_has_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == aiperf_svc.__version__
    assert found["commit"] == build.commit()
    # An archive of the repository has no commit.
    expected = "[0-9a-f]{40}" if (ROOT / ".git").exists() else "unknown"
    assert re.fullmatch(expected, found["commit"])


def test_commit_of_a_build_is_in_its_file(tmp_path: Path) -> None:
    package = tmp_path / "aiperf_svc"
    package.mkdir()
    assert build.commit(package) == "unknown"
    (package / build.COMMIT).write_text("0a1b2c\n")
    assert build.commit(package) == "0a1b2c"


def test_steps_without_library_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", {build.COMPILED_STEPS[0]: None}.get)
    monkeypatch.setattr(build, "COMPILED_STEPS", build.COMPILED_STEPS[:1])
    assert build.interpreted_steps() == ["stamped_reads"]
    assert "stamped_reads: interpreted, not compiled" in build.interpreted_notice()


def test_compiled_steps_match_the_built_ones() -> None:
    from scripts.compile_steps import SOURCES

    names = {str(source.relative_to(ROOT).with_suffix("")).replace("/", ".") for source in SOURCES}
    assert names == {*build.COMPILED_STEPS}


def test_wheel_gets_all_that_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts import build_hook
    from scripts.compile_steps import LAUNCHER, PROJECT, SOURCES

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    expected = {str(LAUNCHER.relative_to(PROJECT).with_suffix(""))}
    for source in SOURCES:
        path = source.relative_to(PROJECT).with_suffix(".abi3.so")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        expected.add(str(path))
    hook: Any = build_hook.BuildHook.__new__(build_hook.BuildHook)
    hook.__dict__ |= {"_BuildHookInterface__root": str(tmp_path)}
    hook.__dict__ |= {"_BuildHookInterface__target_name": "wheel"}
    data: dict[str, Any] = {"artifacts": [], "force_include": {}}
    hook.initialize("standard", data)
    assert set(data["artifacts"]) == expected
    assert data["tag"].startswith("cp311-abi3-")


def test_package_page_links_to_the_released_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts import build_hook

    url = "https://forge.example/owner/aiperf_svc"
    monkeypatch.setenv("REPOSITORY_URL", url)
    hook = build_hook.MetadataHook(str(ROOT), {})
    found: dict[str, Any] = {"version": "1.2.3"}
    hook.update(found)
    text = found["readme"]["text"]
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    assert f"({url}/blob/v1.2.3/docs/usage.md)" in text
    assert f"({url}/raw/v1.2.3/docs/images/report.png)" in text
    assert found["urls"]["Source"] == url
    kept = {"version": "1.2.3", "readme": "of the sdist"}
    hook.update(kept)
    assert kept["readme"] == "of the sdist"
