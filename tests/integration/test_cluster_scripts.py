"""The scripts of tests/cluster do nothing when they are asked what they do, or asked nonsense."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "cluster"


@pytest.mark.parametrize("name", ["up", "down", "env", "possible", "kwok-down"])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--nonsense", 1)])
def test_a_script_without_that_argument_only_speaks(
    tmp_path: Path, name: str, argument: str, code: int
) -> None:
    environ = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = (str(SCRIPTS / name), argument)
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (ended.returncode, list(tmp_path.iterdir())) == (code, [])
    assert ended.stdout or "no option '--nonsense'" in ended.stderr
