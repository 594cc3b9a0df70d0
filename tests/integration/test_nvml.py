"""GPUs are read through NVML, with a fake library that returns known values."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from aiperf_svc.adapters.telemetry import nvml
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from aiperf_svc.core.telemetry.series import gpus
from tests.support.forked_commands import ForkedCommand
from tests.support.in_one_loop import server
from tests.support.preparations import Preparation
from tests.support.running_command import FINISHED, WAIT_S

SOURCE = Path(__file__).parents[1] / "support/fake_nvml.c"
REAL = Path(__file__).parents[1] / "data/telemetry/nvml.txt"
LIBRARY = "libnvidia-ml.so.1"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    """Return a preparation that makes a command use the fake library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = str(tmp_path_factory.mktemp("nvml") / LIBRARY)
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")
    subprocess.run([compiler, *flags, "-o", path, str(SOURCE)], check=True)
    return "load_library", path


def ended(folder: Path, library: Preparation, *words: str, **environ: str) -> tuple[int, str]:
    """Run a command and return its exit code and standard error."""
    env = os.environ | environ
    command = ForkedCommand(words, cwd=folder, env=env, preparation=library)
    _, errors = command.communicate(WAIT_S)
    return command.wait(), errors


@pytest.fixture
def page_url(library: Preparation, tmp_path: Path) -> Iterator[str]:
    """Run `nvml-exporter` and yield the URL of its page."""
    words = ("nvml-exporter", "--host", "127.0.0.1", "--port", "0")
    ours, theirs = os.openpty()
    exporter = ForkedCommand(
        words, cwd=tmp_path, env=os.environ, preparation=library, terminal_fd=theirs
    )
    with os.fdopen(ours) as stream:
        yield stream.readline().split()[-1]
        exporter.terminate()
        exporter.wait(WAIT_S)
    os.close(theirs)


def profiled(library: Preparation, folder: Path, *flags: str) -> dict[str, Any]:
    """Run for two seconds and return the results."""
    folder.mkdir(exist_ok=True)
    load = ("--duration", "2s", "--concurrency", "4", "--metrics-interval", "100ms")
    with server(ttft="20ms", itl="5ms", tokens=10) as mock:
        target = ("profile", "--url", mock.url, "--model", "m", "--ui", "none")
        code, errors = ended(folder, library, *target, *load, *flags)
        assert code in FINISHED, errors
    (path,) = folder.rglob("profile_export_aiperf.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_run_reads_the_gpus_of_this_machine(library: Preparation, tmp_path: Path) -> None:
    result = profiled(library, tmp_path, "--nvml", "all")
    system = result["aiperf_svc"]["system"]
    metrics = system["metrics"]
    assert metrics["gpu_power"] == pytest.approx(700, rel=0.05)
    length_s = result["benchmark_duration"]["avg"]
    assert metrics["gpu_energy"] == pytest.approx(700 * length_s, rel=0.05)
    texts = [check["text"] for check in system["checks"] if check["check"] == "gpu_throttling"]
    # The first GPU counts a fifth of the time. All samples of the second one are throttled.
    assert "power limits reduced the clock of GPU-00000001-aaaa" in texts[0]
    assert "100.0% of the time" in texts[0]
    (lines,) = tmp_path.rglob("gpu_telemetry_export.jsonl")
    line = json.loads(lines.read_text().splitlines()[0])
    assert (line["dcgm_url"], line["gpu_model_name"]) == ("nvml://localhost", 'NVIDIA "Fake" 80GB')
    assert line["telemetry_data"]["gpu_memory_used"] == pytest.approx(63.35, rel=1e-3)  # 59 GiB


def test_single_gpus_are_chosen_by_index_and_uuid(library: Preparation, tmp_path: Path) -> None:
    for number, (gpu, watts) in enumerate((("1", 300), ("GPU-00000000-aaaa", 400))):
        result = profiled(library, tmp_path / str(number), "--nvml", gpu)
        power = result["aiperf_svc"]["system"]["metrics"]["gpu_power"]
        assert power == pytest.approx(watts, rel=0.05)


def test_page_has_the_names_of_dcgm(page_url: str) -> None:
    with urlopen(page_url) as response:
        page = PageReader().read(response.read().decode())
    log = SourceLog(page_url, is_gpu=True)
    log.add(page, wall_ns=1, latency_ns=1)
    found = list(gpus([log]))
    assert [each.uuid for each in found] == ["GPU-00000000-aaaa", "GPU-00000001-aaaa"]
    values = {name: log.last(each[-1]) for name, (_, each) in found[0].fields.items()}
    assert (values["gpu_power_usage"], values["gpu_power_limit"]) == (400, 700)
    assert (values["sm_clock_frequency"], values["max_sm_clock_frequency"]) == (1700, 1980)
    assert (values["gpu_utilization"], values["gpu_temperature"]) == (90, 60)
    # Unsupported metrics of a GPU are omitted.
    assert "power_violation" not in found[1].fields
    assert found[0].labels["DCGM_FI_DRIVER_VERSION"] == "580.65.06"


def test_page_has_the_form_of_a_real_gpus(page_url: str) -> None:
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


async def test_start_of_nvml_is_not_in_page_times(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_ns = now_ns = 10**18

    def advance(seconds: int) -> None:
        nonlocal now_ns
        now_ns += seconds * 10**9

    class SlowGpus:
        """GPUs whose driver takes ten seconds to start and two seconds for a page."""

        def __init__(self, _wanted: object) -> None:
            advance(10)

        def page(self) -> str:
            advance(2)
            return "a page"

        def close(self) -> None:
            """Do nothing."""

    monkeypatch.setattr(nvml, "NvmlGpus", SlowGpus)
    for clock in ("time_ns", "monotonic_ns"):
        monkeypatch.setattr(nvml, clock, lambda: now_ns)
    async with nvml.NvmlPages(("all",)) as pages:
        found = await pages.fetch("", timeout_s=WAIT_S)
    assert found.text == "a page"
    assert (found.wall_ns - begin_ns, found.latency_ns) == (11 * 10**9, 2 * 10**9)


@pytest.mark.parametrize(
    ("variables", "gpus", "problem", "has_library"),
    [
        ({"FAKE_NVML_NO_DRIVER": "1"}, "all", "it needs NVIDIA's driver on this machine", True),
        ({"FAKE_NVML_NO_GPU": "1"}, "all", "NVML finds no GPU on this machine", True),
        ({}, "7", "no GPU '7' on this machine; it has 0 (GPU-00000000-aaaa), 1 (GPU-", True),
        ({}, "all", "NVML cannot be used: NVML Shared Library Not Found", False),
    ],
)
def test_missing_gpus_are_named(
    library: Preparation,
    tmp_path: Path,
    variables: dict[str, str],
    gpus: str,
    problem: str,
    has_library: bool,
) -> None:
    preparation: Preparation = library if has_library else ("hide_nvml",)
    code, errors = ended(tmp_path, preparation, "nvml-exporter", "--gpus", gpus, **variables)
    assert (code, problem in errors) == (1, True), errors


class HangingGpus:
    """GPUs whose driver hangs until the test releases it."""

    def __init__(self) -> None:
        self.reads = self.closes = 0
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def page(self) -> str:
        self.reads += 1
        self.has_begun.set()
        assert self.may_go_on.wait(WAIT_S)
        return "page"

    def close(self) -> None:
        self.closes += 1


async def test_hanging_driver_keeps_one_thread_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = HangingGpus()
    monkeypatch.setattr(nvml, "NvmlGpus", lambda _wanted: gpus)
    pages = nvml.NvmlPages(("all",))
    for _ in range(3):
        found = await pages.fetch("nvml://localhost", timeout_s=0.01)
        assert "did not respond" in found.failure
        assert await asyncio.to_thread(gpus.has_begun.wait, WAIT_S)
    await pages.__aexit__()
    assert (gpus.reads, gpus.closes) == (1, 0)
    gpus.may_go_on.set()
    assert (await pages.fetch("nvml://localhost", timeout_s=WAIT_S)).text == "page"
    await pages.__aexit__()
    assert (gpus.reads <= 2, gpus.closes) == (True, 1)
