"""The last lines of a log in a readable form."""

import json
from pathlib import Path

from aiperf_svc.adapters.host import processes


def line(message: str, **fields: str) -> str:
    return json.dumps({"level": "error", "service": "worker", "message": message, **fields}) + "\n"


def test_last_lines_combine_log_and_standard_error(tmp_path: Path) -> None:
    (tmp_path / "worker-3.log").write_text("".join(line(f"m{n}") for n in range(20)))
    (tmp_path / "worker-3.stderr").write_text("Segmentation fault\n")
    assert processes.last_lines(tmp_path, "worker-3", 3) == (
        "  error worker-3: m18\n  error worker-3: m19\n  Segmentation fault"
    )


def test_exception_is_logged_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "control.log").write_text(line("broke", exception="Traceback\nValueError"))
    assert "error worker: broke\n" in processes.last_lines(tmp_path, "control")
    assert "ValueError" in processes.last_lines(tmp_path, "control")


def test_logs_of_a_processes_services_are_merged(tmp_path: Path) -> None:
    def at(second: int, service: str) -> str:
        return json.dumps({"time": f"0{second}", "service": service, "message": f"at {second}"})

    (tmp_path / "timing-manager.log").write_text(at(1, "timing-manager") + "\n")
    (tmp_path / "records-manager.log").write_text(
        f"{at(0, 'records-manager')}\n{at(2, 'records-manager')}\n"
    )
    (tmp_path / "worker-0.log").write_text(at(3, "worker") + "\n")
    story = processes.last_lines(tmp_path, "control").splitlines()
    assert [line.rpartition(": ")[2] for line in story] == ["at 0", "at 1", "at 2"]


def test_silent_process_has_no_log_tail(tmp_path: Path) -> None:
    assert processes.last_lines(tmp_path, "control") == ""


def test_only_standard_error_with_content_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.stderr").touch()
    (tmp_path / "b.stderr").write_text("x")
    (tmp_path / "c.log").touch()
    processes.remove_empty(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.stderr", "c.log"]


def test_new_lines_are_reported_once_and_whole(tmp_path: Path) -> None:
    tails = processes.Tails(tmp_path)
    path = tmp_path / "worker-0.log"
    path.write_text(line("one") + '{"level": "in')
    assert tails.new_lines() == ["error worker-0: one"]
    path.write_text(line("one") + line("two"))
    assert tails.new_lines() == ["error worker-0: two"]
    assert tails.new_lines() == []
