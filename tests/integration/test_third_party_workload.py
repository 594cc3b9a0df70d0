"""A workload kind from another package: the example of docs/workloads.md, installed with pip."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.forked_commands import finished
from tests.support.third_party import install, package_files

EXAMPLE_LINES = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example package, installed with pip."""
    site = tmp_path_factory.mktemp("site")
    install(tmp_path_factory.mktemp("source"), site)
    return site


def test_example_is_two_short_files() -> None:
    files = package_files()
    assert [name for name, _ in files] == ["pyproject.toml", "stream_workload.py"]
    lines = [line for _, text in files for line in text.splitlines() if line.strip()]
    assert len(lines) < EXAMPLE_LINES


def command(site: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PYTHONPATH": str(site), "HOME": str(folder)}
    return finished(arguments, cwd=folder, env=environ)


def test_third_party_workload_is_listed(site: Path, tmp_path: Path) -> None:
    listed = command(site, tmp_path, "workloads")
    assert listed.returncode == 0, listed.stderr
    assert "stream " in listed.stdout
    described = json.loads(command(site, tmp_path, "workloads", "stream", "--json").stdout)
    assert [key["key"] for key in described["keys"]][-2:] == ["blocks", "block_size"]


def test_third_party_config_is_validated(site: Path, tmp_path: Path) -> None:
    refused = command(site, tmp_path, "profile", "--workload", "stream", "block=3")
    assert refused.returncode == 2
    assert "workload.block: unknown key (value 3); did you mean workload.blocks?" in refused.stderr


def test_third_party_workload_is_measured(site: Path, tmp_path: Path) -> None:
    flags = ("profile", "--workload", "stream", "blocks=64", "--json", "--ui", "none")
    done = command(site, tmp_path, *flags)
    assert done.returncode in (0, 5), done.stderr
    (metric,) = json.loads(done.stdout)["results"]["metrics"]
    assert metric["info"]["tag"] == "copy_rate"
    assert metric["avg"] > 0


def test_unimportable_package_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "broken-1.dist-info").mkdir(parents=True)
    (broken / "broken-1.dist-info/METADATA").write_text("Name: broken\nVersion: 1\n")
    (broken / "broken-1.dist-info/entry_points.txt").write_text(
        "[aiperf_svc.workloads]\nbroken = no_such_module:WORKLOAD\n"
    )
    refused = command(broken, tmp_path, "profile", "--workload", "broken")
    assert refused.returncode == 2
    assert "no_such_module:WORKLOAD, which an installed package names for it" in refused.stderr
    # The others are still listed.
    assert "iperf" in command(broken, tmp_path, "workloads").stdout
