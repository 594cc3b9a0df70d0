"""The manifests that the runner tries as a dry run equal those of the program."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.pulumi.manifests import read_manifests
from aiperf_svc.cli.main import main
from aiperf_svc.domain.errors import EnvironmentProblem
from tests.support.recording import INFRA, Manifest, record, stack_config


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"].removesuffix("-00000000")


def _read(config: dict[str, Any]) -> tuple[Manifest, ...]:
    reading = read_manifests(INFRA, stack="bench", config=config, environ=os.environ)
    return asyncio.run(reading)


def test_manifests_equal_the_programs_objects() -> None:
    config = stack_config("bench-iperf")
    found = {_key(each): each for each in _read(config)}
    made = {
        (each["kind"], each["metadata"]["name"].removesuffix("-0a1b2c3d")): each
        for each in record("bench", config).manifests
    }
    assert set(found) == set(made)
    for key, each in found.items():
        assert each.get("spec") == made[key].get("spec")
        if each["kind"] == "Secret":
            assert all(base64.b64decode(value, validate=True) for value in each["data"].values())


def test_preview_lists_the_programs_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", "bench-iperf", "--manifests"]) == 0
    found = {_key(each): each for each in yaml.safe_load_all(capsys.readouterr().out)}
    made = {
        (each["kind"], each["metadata"]["name"].removesuffix("-0a1b2c3d")): each
        for each in record("bench-iperf", stack_config("bench-iperf")).manifests
    }
    assert {key: each.get("spec") for key, each in found.items()} == {
        key: each.get("spec") for key, each in made.items()
    }


def test_program_imports_no_file_of_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('yaml was imported')")
    monkeypatch.chdir(tmp_path)
    # The first entry is empty.
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}{INFRA.parent}")
    assert _read(stack_config("bench-iperf"))


def test_failing_program_has_a_reason() -> None:
    with pytest.raises(EnvironmentProblem, match="benchmark"):
        _read({})
