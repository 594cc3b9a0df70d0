"""`aiperf-svc qualify`: limits, baselines, and rejected arguments."""

import os
from pathlib import Path

import pytest

from aiperf_svc.cli.main import main
from aiperf_svc.domain.exit_codes import ExitCode

STACK = """
workload:
  kind: qualify
  stages: [{nodes: pairs, workload: {kind: iperf, duration: 1s}}]
deployment: {ranks: {pairs: rounds, count: 4}}
"""


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["qualify", *arguments]) == ExitCode.BAD_CONFIG
    return capsys.readouterr().err


@pytest.fixture
def stack(tmp_path: Path) -> str:
    (tmp_path / "q.yaml").write_text(STACK)
    return str(tmp_path / "q.yaml")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{check: iperf_bandwidth}", "expected a list of limits, each of which begins with `- `"),
        ("[{chek: iperf_bandwidth, min: 1}]", "  0.chek: unknown key (value 'iperf_bandwidth'); "),
        ("[{check: iperf_bandwidth, of_baseline: 3}]", "0.of_baseline: 3: expected a number of at"),
        ("[iperf_bandwidth]", "limits.yaml: 0: 'iperf_bandwidth': expected keys with values"),
        ("[{check: iperf_bandwidth}]", "limits.yaml: 0: expected one of min, max and of_baseline"),
        ("[{check: fio_iops, min: 1}]", "'fio_iops' is not a check of these stages"),
    ],
)
def test_broken_limits_are_named(
    content: str, expected: str, stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text(content)
    text = refused([stack, "--local", "--dry-run", "--limits", str(limits)], capsys)
    assert expected in text


def test_limits_of_a_file_are_added(
    stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "iperf3").touch(mode=0o755)  # A preview only needs the program to exist.
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    limits = tmp_path / "limits.yaml"
    limits.write_text("[{check: iperf_bandwidth, min: 9Gbit/s}]")
    assert main(["qualify", stack, "--local", "--dry-run", "--limits", str(limits)]) == ExitCode.OK
    assert "workload.stage" in capsys.readouterr().out


def test_baseline_is_the_folder_of_a_qualification(
    stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused([stack, "--local", "--baseline", str(tmp_path)], capsys)
    assert "expected the folder of a qualification" in text


def test_other_kinds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.yaml").write_text("workload: {kind: iperf}")
    text = refused([str(tmp_path / "other.yaml"), "--local"], capsys)
    assert "workload.kind: 'iperf': aiperf-svc qualify runs the kind qualify" in text


def test_stack_or_label_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name a stack" in refused([], capsys)
    assert "measures nothing" in refused(["q.yaml", "--label", str(tmp_path)], capsys)
