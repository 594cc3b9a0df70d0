"""A qualification with ranks of this machine as nodes and a command that prints their speed."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.namespaces import NEEDS, can_make_namespaces, namespaces
from tests.support.ports import free_port
from tests.support.running_command import Command, artifacts, wait_until
from tests.support.system_tools import SYSTEM_PATH, needs

METRIC = {"speed": {"unit": "ops/s", "better": "higher", "pattern": r"speed: (\d+)"}}
SLOW = "test $AIPERF_RANK -eq 5 && echo speed: 80 || echo speed: 100"


def config(script: str = SLOW, *, count: int = 8, **spec: Any) -> dict[str, Any]:
    """Return a config that measures nodes, then pairs. A pair is as fast as its slower node."""
    command = {"kind": "command", "command": ["sh", "-c", script]}
    return {
        "workload": {
            "kind": "qualify",
            "stages": [
                {"name": "one", "nodes": "alone", "workload": {**command, "metrics": METRIC}},
                {
                    "name": "two",
                    "nodes": "pairs",
                    "workload": {
                        **command,
                        "metrics": {"speed": {**METRIC["speed"], "combine": "min"}},
                    },
                },
            ],
            **spec,
        },
        "deployment": {"ranks": {"pairs": "rounds", "count": count}},
    }


def launch(
    folder: Path, content: dict[str, Any], *flags: str, path: str = os.environ["PATH"]
) -> Command:
    (folder / "input.jsonl").write_text(json.dumps(content))
    words = (str(folder / "input.jsonl"), "--local", *flags)
    return Command(folder, None, *words, words=("qualify",), PATH=path)


def nodes(folder: Path) -> dict[str, str]:
    found = json.loads((artifacts(folder) / "qualify.json").read_text())["nodes"]
    return {each["node"].rpartition(" ")[2]: each["verdict"] for each in found}


def test_slow_rank_fails_and_leaves_the_pairs(tmp_path: Path) -> None:
    command = launch(tmp_path, config())
    printed = command.finish()
    assert command.code is ExitCode.SLO_MISSED, command.errors
    command.assert_nothing_is_left()
    assert printed["results"]["qualification"]["result"].startswith("7 of 8 nodes qualify")
    assert nodes(tmp_path) == {**dict.fromkeys("01234567", "pass"), "5": "fail"}
    folder = artifacts(tmp_path)
    rows = list(csv.DictReader((folder / "qualify.csv").read_text().splitlines()))
    (bad,) = (row for row in rows if row["verdict"] == "fail")
    assert (bad["check"], bad["value"], bad["median"], bad["repeated"]) == (
        "one_speed",
        "80.0",
        "100.0",
        "80.0",
    )
    left_out = [row["reason"] for row in rows if row["verdict"] == "not-measured"]
    assert left_out == ["excluded: it failed the stage one"]
    assert "one: Speed" in (folder / "report.html").read_text()


def test_slow_pairs_find_their_common_node(tmp_path: Path) -> None:
    stages = config()["workload"]["stages"][1:]
    command = launch(tmp_path, config(stages=stages))
    printed = command.finish()
    assert command.code is ExitCode.SLO_MISSED, command.errors
    result = printed["results"]["qualification"]
    (bad,) = (each for each in result["nodes"] if each["verdict"] != "pass")
    assert bad["node"].endswith("rank 5")
    assert (bad["checks"][0]["value"], bad["checks"][0]["repeated"]) == (80.0, 80.0)
    assert result["paths"] == []


@pytest.mark.skipif(not can_make_namespaces(), reason=NEEDS)
def test_iperf_finds_node_with_a_slow_link(tmp_path: Path) -> None:
    folder = tmp_path.parent / f"{tmp_path.name}-links"
    folder.mkdir()
    with namespaces(folder, ["400mbit", "400mbit", "10mbit", "400mbit"]) as env:
        iperf = {"kind": "iperf", "duration": "2s", "omit": "0s", "port": free_port()}
        content = config(
            count=4,
            stages=[{"nodes": "pairs", "workload": iperf}],
            limits=[{"check": "iperf_bandwidth", "min": "30Mbit/s"}],
            env=env,
        )
        command = launch(tmp_path, content)
        printed = command.finish()
    assert command.code is ExitCode.SLO_MISSED, command.errors
    # A busy machine slows the other links, but not below the limit.
    assert nodes(tmp_path) == {"0": "pass", "1": "pass", "2": "fail", "3": "pass"}
    result = printed["results"]["qualification"]
    (bad,) = (each["checks"][0] for each in result["nodes"] if each["verdict"] == "fail")
    assert bad["limit"] == 30e6
    assert bad["value"] < 20e6
    assert bad["repeated"] < 20e6
    assert result["paths"] == []


FIO = {"kind": "fio", "rw": "randrw", "bs": "4Ki", "size": "16Mi", "runtime": "1s", "ramp": "0s",
       "ioengine": "psync", "direct": False}  # fmt: skip
UCX = {"kind": "ucx", "test": "tag_lat", "max_size": "4Ki", "iterations": 10, "warmup": 1,
       "port": free_port()}  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "package", "stage", "check"),
    [
        ("fio", "fio", {"nodes": "alone", "workload": FIO}, "fio_iops"),
        ("ucx_perftest", "ucx-utils", {"nodes": "pairs", "workload": UCX}, "ucx_latency"),
    ],
    ids=["fio", "ucx"],
)
def test_tool_is_a_stage(
    tool: str, package: str, stage: dict[str, Any], check: str, tmp_path: Path
) -> None:
    needs(tool, package)
    command = launch(tmp_path, config(stages=[stage], count=2), path=SYSTEM_PATH)
    printed = command.finish()
    assert command.code is ExitCode.OK, command.errors
    command.assert_nothing_is_left()
    found = printed["results"]["qualification"]["nodes"]
    assert [each["verdict"] for each in found] == ["pass", "pass"]
    for node in found:
        (judged,) = node["checks"]
        assert judged["check"] == check
        assert judged["value"] > 0


def test_interrupted_qualification_resumes_with_next_round(tmp_path: Path) -> None:
    results = "artifacts/*/trials/*/results.json"
    # Trials after the first two last until they are stopped.
    count = f"ls {tmp_path / results} 2>/dev/null | wc -l"
    hold = f"test -e {tmp_path}/resumed || test $({count}) -lt 2 || exec sleep 600"
    content = config(f"{hold}; echo speed: 100", count=4)
    first = launch(tmp_path, content)
    wait_until(first, lambda: len(list(tmp_path.glob(results))) >= 2)
    first.process.send_signal(signal.SIGINT)
    first.finish()
    assert first.code is ExitCode.INTERRUPTED, first.errors
    folder = artifacts(tmp_path)
    trials = json.loads((folder / "experiment.json").read_text())["trials"]
    done = {each["number"] for each in trials if each["state"] == "done"}
    assert done
    assert done < {1, 3, 4, 5}
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/results.json")}
    (tmp_path / "resumed").touch()
    again = launch(tmp_path, content, "--resume", str(folder))
    printed = again.finish()
    assert again.code is ExitCode.OK, again.errors
    assert [each["number"] for each in printed["results"]["trials"]] == [1, 3, 4, 5]
    kept = [p for p in before if p.exists() and p.stat().st_mtime_ns == before[p]]
    assert len(kept) >= len(done)
    assert nodes(tmp_path) == dict.fromkeys("0123", "pass")


def test_rank_with_failed_tool_is_not_measured(tmp_path: Path) -> None:
    script = "test $AIPERF_RANK -ne 2 || exit 3; echo speed: 100"
    command = launch(tmp_path, config(script, count=4))
    printed = command.finish()
    assert command.code is ExitCode.SLO_MISSED, command.errors
    assert nodes(tmp_path) == {"0": "pass", "1": "pass", "2": "not-measured", "3": "pass"}
    (bad,) = (n for n in printed["results"]["qualification"]["nodes"] if n["verdict"] != "pass")
    assert bad["checks"][0]["reason"] == "rank 2: sh ended with code 3"
