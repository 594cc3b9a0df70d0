"""The scripts of tests/cluster change nothing if called for help or with invalid arguments."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "cluster"


@pytest.mark.parametrize("name", ["up", "down", "env", "possible", "kwok-down"])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--nonsense", 1)])
def test_script_with_unknown_option_changes_nothing(
    tmp_path: Path, name: str, argument: str, code: int
) -> None:
    ended = call(tmp_path, name, argument)
    assert (ended.returncode, list(tmp_path.iterdir())) == (code, [])
    assert ended.stdout or "no option '--nonsense'" in ended.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("up", "--nodes", "0"), "--nodes wants a number from 1 to 4"),
        (("with", "--nodes", "2"), "usage: tests/cluster/with"),
        (("node", "stop"), "usage: tests/cluster/node"),
        (("controller-up",), "usage: tests/cluster/controller-up"),
        (("controller-down", "--help"), "usage: tests/cluster/controller-down"),
        (("node", "restart", "node2"), "usage: tests/cluster/node"),
    ],
)
def test_script_with_incomplete_arguments_changes_nothing(
    tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    ended = call(tmp_path, *command)
    assert (ended.returncode, list(tmp_path.iterdir())) == (1, [])
    assert message in ended.stderr


def test_build_lists_parts_and_times_without_building(tmp_path: Path) -> None:
    ended = call(tmp_path, "build", "--list")
    assert (ended.returncode, list(tmp_path.iterdir())) == (0, [])
    lines = ended.stdout.splitlines()
    assert len(lines) == 11
    assert lines[0].split(maxsplit=1) == ["hyperkube", "to build, about 11 min with empty caches"]


def test_env_needs_only_the_parts_on_its_path(tmp_path: Path) -> None:
    for name in ("hyperkube", "pulumi-cli", "pulumi-language-python"):
        part(tmp_path, name).mkdir(parents=True)
    ended = call(tmp_path, "env")
    assert ended.returncode == 1
    assert "pulumi-resource-kubernetes is not built: run tests/cluster/build" in ended.stderr
    part(tmp_path, "pulumi-resource-kubernetes").mkdir()
    assert "export PATH=" in call(tmp_path, "env").stdout


def test_cluster_in_use_is_not_stopped(tmp_path: Path) -> None:
    (tmp_path / "aiperf-svc" / "clusters").mkdir(parents=True)
    ended = bash(tmp_path, "use_cluster pytest -k drain; (refuse_if_used) || echo refused")
    assert ended.stdout == "refused\n"
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tests/cluster/env: the cluster is in use by process ")
    assert line.endswith(": pytest -k drain; wait for it, or end it")
    ended = bash(tmp_path, "use_cluster pytest; exec 7>&-; refuse_if_used; echo free")
    assert (ended.stdout, ended.stderr) == ("free\n", "")


def part(home: Path, name: str) -> Path:
    """Return the folder of a part in the cache."""
    return Path(bash(home, f"part {name}").stdout.strip())


def bash(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that sources the shared functions and return its result."""
    whole = f'. "{SCRIPTS}/lib/common.sh"; {script}'
    environ = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    command = ("bash", "-c", whole, str(SCRIPTS / "env"))
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True)


def call(home: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of tests/cluster with empty user folders and return its result."""
    environ = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    command = (str(SCRIPTS / name), *arguments)
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
