"""GPUs read through NVML, by a library with its C interface and known values."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from aiperf_svc.core.telemetry.series import gpus
from tests.support.in_one_loop import server

SOURCE = Path(__file__).parents[1] / "support/fake_nvml.c"
REAL = Path(__file__).parents[1] / "data/telemetry/nvml.txt"
COMMAND = (sys.executable, "-m", "aiperf_svc")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which NVIDIA's library is the one with known values."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(SOURCE)], check=True)
    return os.environ | {"LD_LIBRARY_PATH": str(folder)}


@pytest.fixture
def page_url(environment: dict[str, str]) -> Iterator[str]:
    """The page of a running `nvml-exporter`."""
    words = (*COMMAND, "nvml-exporter", "--host", "127.0.0.1", "--port", "0")
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as exporter:
        assert exporter.stdout is not None
        yield exporter.stdout.readline().split()[-1]
        exporter.terminate()


def profiled(environment: dict[str, str], folder: Path, *flags: str) -> dict[str, Any]:
    """The results of a run of two seconds."""
    with server(ttft="20ms", itl="5ms", tokens=10) as mock:
        words = [*COMMAND, "profile", "--url", mock.url, "--model", "m", "--duration", "2s"]
        words += [
            "--concurrency",
            "4",
            "--metrics-interval",
            "100ms",
            "--artifact-dir",
            str(folder),
            *flags,
        ]
        subprocess.run(words, env=environment, check=True, capture_output=True, timeout=120)
    (path,) = folder.rglob("profile_export_aiperf.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_run_reads_the_gpus_of_this_machine(environment: dict[str, str], tmp_path: Path) -> None:
    result = profiled(environment, tmp_path, "--nvml", "all")
    system = result["aiperf_svc"]["system"]
    metrics = system["metrics"]
    assert metrics["gpu_power"] == pytest.approx(700)
    length_s = result["benchmark_duration"]["avg"]
    assert metrics["gpu_energy"] == pytest.approx(700 * length_s, rel=0.05)
    texts = [check["text"] for check in system["checks"] if check["check"] == "gpu_throttling"]
    # The first GPU counts a fifth of the time; all samples of the second one have the reason.
    assert "power limits reduced the clock of GPU-00000001-aaaa" in texts[0]
    assert "100.0% of the time" in texts[0]
    (lines,) = tmp_path.rglob("gpu_telemetry_export.jsonl")
    line = json.loads(lines.read_text().splitlines()[0])
    assert (line["dcgm_url"], line["gpu_model_name"]) == ("nvml://localhost", 'NVIDIA "Fake" 80GB')
    assert line["telemetry_data"]["gpu_memory_used"] == pytest.approx(63.35, rel=1e-3)  # 59 GiB


def test_single_gpus_are_chosen_by_index_and_uuid(
    environment: dict[str, str], tmp_path: Path
) -> None:
    for number, (gpu, watts) in enumerate((("1", 300), ("GPU-00000000-aaaa", 400))):
        result = profiled(environment, tmp_path / str(number), "--nvml", gpu)
        assert result["aiperf_svc"]["system"]["metrics"]["gpu_power"] == pytest.approx(watts)


def test_page_has_the_names_of_dcgm(environment: dict[str, str], page_url: str) -> None:
    with urlopen(page_url) as response:
        page = PageReader().read(response.read().decode())
    log = SourceLog(page_url, is_gpu=True)
    log.add(page, wall_ns=1, latency_ns=1)
    found = list(gpus([log]))
    assert [each.uuid for each in found] == ["GPU-00000000-aaaa", "GPU-00000001-aaaa"]
    values = {name: log.last(number) for name, (_, number) in found[0].fields.items()}
    assert (values["gpu_power_usage"], values["gpu_power_limit"]) == (400, 700)
    assert (values["sm_clock_frequency"], values["max_sm_clock_frequency"]) == (1700, 1980)
    assert (values["gpu_utilization"], values["gpu_temperature"]) == (90, 60)
    # What a GPU does not support is left out.
    assert "power_violation" not in found[1].fields
    assert found[0].labels["DCGM_FI_DRIVER_VERSION"] == "580.65.06"


def test_page_has_the_form_of_that_of_a_real_gpu(page_url: str) -> None:
    with urlopen(page_url) as response:
        made, real = (
            PageReader().read(response.read().decode()),
            PageReader().read(REAL.read_text()),
        )
    assert made.types == real.types
    first = [each for each in made.values if each.label("gpu") == "0"]
    assert [(s.name, [k for k, _ in s.labels]) for s in first] == [
        (s.name, [k for k, _ in s.labels]) for s in real.values
    ]


@pytest.mark.parametrize(
    ("variables", "gpus", "problem"),
    [
        ({"FAKE_NVML_NO_DRIVER": "1"}, "all", "it needs NVIDIA's driver on this machine"),
        ({"FAKE_NVML_NO_GPU": "1"}, "all", "NVML finds no GPU on this machine"),
        ({}, "7", "no GPU '7' on this machine; it has 0 (GPU-00000000-aaaa), 1 (GPU-"),
        ({"LD_LIBRARY_PATH": ""}, "all", "NVML cannot be used: NVML Shared Library Not Found"),
    ],
)
def test_missing_gpus_are_named(
    environment: dict[str, str], variables: dict[str, str], gpus: str, problem: str
) -> None:
    words = (*COMMAND, "nvml-exporter", "--gpus", gpus)
    ended = subprocess.run(
        words, env=environment | variables, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert problem in ended.stderr
