"""The kind `openfoam`. The log was recorded between two network namespaces."""

import math
from typing import Any

import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.workloads.openfoam import WORKLOAD
from aiperf_svc.workloads.openfoam.workload import division
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, recorded, tool_config

LOG = recorded("openfoam/icofoam-1912-xs-fixed-iter-2-processes.txt").decode()


def config_of(placed: dict[str, Any] | None = None, **spec: Any) -> WorkloadConfig[Any]:
    return tool_config("openfoam", on=placed, **{"size": "XS", **spec})


def reading_of(text: str, **spec: Any) -> Reading:
    config = config_of(**spec)
    step = WORKLOAD.steps(config, make_ranks(2))[1]
    return WORKLOAD.read(config, step, [Output(rank=0, exit_code=0, stdout=text.encode())])


def test_step_time_excludes_the_set_up() -> None:
    reading = reading_of(LOG)
    times = [float(line.split()[2]) for line in LOG.splitlines() if line.startswith("Execution")]
    assert len(times) == 20
    assert reading.values["solver_time"] == times[-1]
    assert reading.values["step_time"] == pytest.approx((times[-1] - times[0]) / 19)
    assert reading.values["rate"] == pytest.approx(8_000 * 19 / (times[-1] - times[0]))
    assert reading.tool == "OpenFOAM 1912 patch=200626"
    assert reading.errors == ()


def test_the_series_has_each_step_but_the_first() -> None:
    (series,) = reading_of(LOG).series
    assert len(series.values) == len(series.times_s) == 19
    assert sum(series.values) == pytest.approx(reading_of(LOG).values["step_time"] * 19)


def test_fixed_iterations_do_equal_work_per_step() -> None:
    assert reading_of(LOG).values["pressure_iterations"] == 250 * 2 * 20


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        (LOG, {"processes": 4}, "icoFoam has 2 processes; expected 4"),
        (LOG, {"size": "S"}, "expected 500 time steps and the line 'End', found 20 steps"),
        (LOG[: LOG.rindex("\nEnd")], {}, "expected 20 time steps and the line 'End'"),
        (LOG[: LOG.rindex("\nExecutionTime")] + "\nEnd\n", {}, "of which 19 have"),
        (LOG.replace("No Iterations", "Iterations"), {}, "expected lines 'Solving for p"),
    ],
)
def test_incomplete_log_is_unreadable(text: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableOutput) as error:
        reading_of(text, **spec)
    assert message in str(error.value)


def test_diverged_solution_is_an_error() -> None:
    text = LOG.replace("Final residual = 2.07354e-43", "Final residual = nan")
    assert text != LOG
    assert reading_of(text).errors == ("a residual is not a number: the solution diverged",)


@pytest.mark.parametrize(
    ("solver_s", "clock_s", "severity"),
    [(95.0, 100, Severity.VALID), (98.5, 100, Severity.VALID), (60.0, 100, Severity.DEGRADED)],
)
def test_wall_time_outside_the_solver_is_a_finding(
    solver_s: float, clock_s: int, severity: Severity
) -> None:
    reading = Reading(values={"solver_time": solver_s, "clock_time": float(clock_s)})
    (reason,) = WORKLOAD.checks(config_of(), [reading])
    assert reason.severity is severity


def test_each_rank_prepares_and_all_processes_solve() -> None:
    prepare, solve = WORKLOAD.steps(config_of(processes=3), make_ranks(2))
    assert not prepare.is_measured
    assert [(c.rank, c.argv) for c in prepare.commands] == [
        (0, ("./prepare", "/volume/cavity")),
        (1, ("./prepare", "/volume/cavity")),
    ]
    (command,) = solve.commands
    assert command.argv[-4:] == ("icoFoam", "-case", "/volume/cavity", "-parallel")
    assert "10.0.0.0:2,10.0.0.1:1" in command.argv
    assert solve.agent_ranks == (1,)


def test_a_case_that_ranks_share_is_prepared_once() -> None:
    local = WORKLOAD.steps(config_of(), make_ranks(2, address="127.0.0.1"))[0]
    assert [command.rank for command in local.commands] == [0]
    shared = config_of({"volume": {"kind": "shared-claim"}})
    prepare = WORKLOAD.steps(shared, make_ranks(2))[0]
    assert [command.rank for command in prepare.commands] == [0]
    of_node = config_of({"nodes": "together", "volume": {"kind": "host-path", "path": "/data"}})
    ranks = *make_ranks(3, node="one")[:2], *make_ranks(3, node="other")[2:]
    prepare = WORKLOAD.steps(of_node, ranks)[0]
    assert [command.rank for command in prepare.commands] == [0, 2]


def test_one_process_solves_the_case_undivided() -> None:
    config = config_of(processes=1, nodes=1)
    command = WORKLOAD.steps(config, make_ranks(1))[1].commands[0]
    assert "-parallel" not in command.argv
    assert b"[ 1 -gt 1 ]" in WORKLOAD.files(config)["prepare"]


def test_case_has_the_published_size() -> None:
    files = WORKLOAD.files(config_of(size="M", processes=12))
    assert b"(200 200 200)" in files["system/blockMeshDict"]
    assert b"deltaT 0.00025;" in files["system/controlDict"]
    assert b"endTime 0.5;" in files["system/controlDict"]
    assert b"n (3 2 2);" in files["system/decomposeParDict"]
    assert b"tolerance 0; relTol 0; maxIter 250;" in files["system/fvSolution"]
    assert files["prepare"].startswith(b"#!/bin/sh\n")
    cases = {name: text for name, text in files.items() if name != "prepare"}
    assert not [name for name, text in cases.items() if b"$" in text]
    norm = WORKLOAD.files(config_of(iterative_method="fixed-norm"))
    assert b"tolerance 1e-4; relTol 0;" in norm["system/fvSolution"]


def test_the_xl_case_ends_after_its_100_steps() -> None:
    assert b"endTime 0.00625;" in WORKLOAD.files(config_of(size="XL"))["system/controlDict"]


@pytest.mark.parametrize("processes", [1, 2, 7, 12, 30, 64, 100])
def test_the_cube_is_divided_among_exactly_the_processes(processes: int) -> None:
    parts = division(processes)
    assert math.prod(parts) == processes
    assert sorted(parts, reverse=True) == list(parts)


def test_parts_are_nearly_cubes() -> None:
    assert [division(n) for n in (8, 12, 64, 7)] == [(2, 2, 2), (3, 2, 2), (4, 4, 4), (7, 1, 1)]


def test_debians_environment_is_set_unless_image_is_named() -> None:
    for image, expected in ((None, "/usr/share/openfoam"), ("openfoam:v2312", None)):
        config = config_of(image=image)
        for step in WORKLOAD.steps(config, make_ranks(2)):
            assert step.commands[0].env.get("WM_PROJECT_DIR") == expected
