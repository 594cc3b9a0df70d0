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
    ended = call(tmp_path, name, argument)
    assert (ended.returncode, list(tmp_path.iterdir())) == (code, [])
    assert ended.stdout or "no option '--nonsense'" in ended.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("up", "--nodes", "0"), "--nodes wants a number from 1 to 4"),
        (("with", "--nodes", "2"), "usage: tests/cluster/with"),
        (("node", "stop"), "usage: tests/cluster/node"),
        (("node", "restart", "node2"), "usage: tests/cluster/node"),
    ],
)
def test_a_script_with_half_its_arguments_only_speaks(
    tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    ended = call(tmp_path, *command)
    assert (ended.returncode, list(tmp_path.iterdir())) == (1, [])
    assert said in ended.stderr


def call(home: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """How a script ends that finds nothing in its user's folders."""
    environ = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    command = (str(SCRIPTS / name), *arguments)
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
