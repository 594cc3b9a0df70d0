"""Log lines contain service, time, run and phase, in both formats and in the correct place."""

import json
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.host.logs import set_phase, set_up_logs
from aiperf_svc.domain.errors import EnvironmentProblem

SERVICES = ("timing-manager", "worker-manager")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # `basicConfig(force=True)` closes replaced handlers, but pytest still needs its own.
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    set_phase("")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_line_has_all_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs"
    set_up_logs("r1", SERVICES, instance="control", environ={"AIPERF_LOG_DIR": str(folder)})
    set_phase("warmup")
    logging.getLogger("aiperf_svc.timing-manager").info("first\nof %d", 2)
    (line,) = lines(folder / "timing-manager.log")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "run": "r1",
        "phase": "warmup",
        "service": "timing-manager",
        "message": "first\nof 2",
    }
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("form", ["json", "text"])
def test_foreign_text_in_logs_is_safe_and_bounded(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs("r1", SERVICES, instance="c", environ={"AIPERF_LOG_FORMAT": form})
    hostile = "\x1b[2J\x9b2J\u202e\x7f" + "long" * 10_000
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        logging.getLogger("aiperf_svc.timing-manager").exception("server said %s", hostile)
    written = capsys.readouterr().err
    assert all(line.isprintable() for line in written.splitlines())
    assert "\\x9b2J" in written
    assert len(written) < 20_000


def test_every_service_of_process_has_own_log(tmp_path: Path) -> None:
    set_up_logs("r1", SERVICES, instance="c", environ={"AIPERF_LOG_DIR": str(tmp_path)})
    logging.getLogger("aiperf_svc.services.worker_manager").info("own")
    logging.getLogger("aiperf_svc.timing-manager").info("own too")
    logged = {path.stem: [line["message"] for line in lines(path)] for path in tmp_path.iterdir()}
    assert logged == {"worker-manager": ["own"], "timing-manager": ["own too"]}


def test_line_of_a_shared_module_names_all_services(tmp_path: Path) -> None:
    set_up_logs("r1", SERVICES, instance="c", environ={"AIPERF_LOG_DIR": str(tmp_path)})
    logging.getLogger("aiperf_svc.adapters.messaging.bus").info("shared")
    (line,) = lines(tmp_path / "timing-manager.log")
    assert line["service"] == "timing-manager,worker-manager"
    assert lines(tmp_path / "worker-manager.log") == []


def test_an_exception_is_part_of_its_line(tmp_path: Path) -> None:
    set_up_logs("r1", ("worker",), instance="c", environ={"AIPERF_LOG_DIR": str(tmp_path)})
    try:
        raise ZeroDivisionError("division")
    except ZeroDivisionError:
        logging.getLogger("x").exception("failed")
    (line,) = lines(tmp_path / "c.log")
    assert line["level"] == "error"
    assert line["exception"].endswith("ZeroDivisionError: division")


def test_pod_logs_are_json_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("r1", SERVICES, instance="c", environ={"AIPERF_LOG_FORMAT": "json"})
    logging.getLogger("x").warning("é")
    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["phase"]) == ("é", "")


def test_logs_without_a_folder_are_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("r1", ("worker",), instance="c", environ={})
    set_phase("profiling")
    logging.getLogger("x").warning("slow")
    assert re.fullmatch(r"\S+Z WARNING worker \[profiling\]: slow\n", capsys.readouterr().err)


def test_restarted_process_appends_to_the_same_file(tmp_path: Path) -> None:
    for number in (1, 2):
        set_up_logs("r1", ("worker",), instance="c", environ={"AIPERF_LOG_DIR": str(tmp_path)})
        logging.getLogger("x").info("start %d", number)
    assert [line["message"] for line in lines(tmp_path / "c.log")] == ["start 1", "start 2"]


def test_a_warning_of_a_library_is_a_line(tmp_path: Path) -> None:
    set_up_logs("r1", ("worker",), instance="c", environ={"AIPERF_LOG_DIR": str(tmp_path)})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = lines(tmp_path / "c.log")
    assert "DeprecationWarning: old" in line["message"]


def test_debug_lines_are_there_on_demand_only(tmp_path: Path) -> None:
    environ = {"AIPERF_LOG_DIR": str(tmp_path)}
    set_up_logs("r1", ("worker",), instance="a", environ=environ)
    logging.getLogger("x").debug("detail")
    set_up_logs("r1", ("worker",), instance="b", environ={**environ, "AIPERF_LOG_LEVEL": "debug"})
    logging.getLogger("x").debug("detail")
    assert lines(tmp_path / "a.log") == []
    assert [line["message"] for line in lines(tmp_path / "b.log")] == ["detail"]


def test_unwritable_log_or_unknown_level_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*file/c\.log: "):
        set_up_logs("r", (), instance="c", environ={"AIPERF_LOG_DIR": str(tmp_path / "file")})
    with pytest.raises(EnvironmentProblem, match="AIPERF_LOG_LEVEL=LOUD: expected one of DEBUG"):
        set_up_logs("r", (), instance="c", environ={"AIPERF_LOG_LEVEL": "loud"})
