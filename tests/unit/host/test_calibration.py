"""A calibration belongs to one machine and one build."""

from pathlib import Path

import msgspec
import pytest

from aiperf_svc.adapters.host import machine
from aiperf_svc.adapters.host.machine import (
    Calibration,
    LagStep,
    calibration_file,
    load_calibration,
    machine_key,
    save_calibration,
)
from aiperf_svc.domain.errors import EnvironmentProblem

HERE = machine_key(machine.cpu_model(), machine.usable_cores())
FOUND = Calibration(
    machine=HERE,
    worker_requests_per_s=20_000,
    requests_per_s=21_000,
    chunks_per_s=90_000,
    worker_rate=15_000,
    connections=19_000,
    steps=(LagStep(15_000, 1.5, "valid"),),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_saved_calibration_is_loaded_and_used() -> None:
    assert not machine.local_facts().is_calibrated
    save_calibration(FOUND)
    assert load_calibration(HERE) == FOUND
    facts = machine.local_facts()
    assert facts.worker_requests_per_s == 15_000
    assert facts.ceiling_requests_per_s == 21_000


def test_another_machine_has_no_calibration() -> None:
    save_calibration(FOUND)
    assert load_calibration(machine_key("another", 64)) is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"machine": 1}', b"\xff"])
def test_a_broken_file_counts_as_none(content: bytes) -> None:
    path = calibration_file(HERE)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert load_calibration(HERE) is None


def test_calibration_of_another_machine_is_ignored() -> None:
    path = calibration_file(HERE)
    path.parent.mkdir(parents=True)
    other = msgspec.structs.replace(FOUND, machine="another")
    path.write_bytes(msgspec.json.encode(other))
    assert load_calibration(HERE) is None


def test_a_folder_that_cannot_be_made_is_named(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(EnvironmentProblem, match="set XDG_CACHE_HOME to another folder"):
        save_calibration(FOUND)
