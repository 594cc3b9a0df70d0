"""`make bench` links the command even before the package is installed."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_linked_command_works_without_an_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    programs = tmp_path / "env" / "bin"
    link = [programs / "python", ROOT / "scripts" / "link_command.py"]
    subprocess.run(link, check=True, cwd=tmp_path)
    shown = subprocess.run(
        [programs / "aiperf-svc", "--help"], capture_output=True, text=True, cwd=tmp_path
    )
    assert shown.returncode == 0, shown.stderr
    assert "usage: aiperf-svc COMMAND" in shown.stdout
    assert sys.prefix not in (programs / "aiperf-svc").read_text()


def test_make_bench_links_the_command() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "bench"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    ).stdout
    assert "scripts/link_command.py" in planned
    assert " -e ." not in planned
