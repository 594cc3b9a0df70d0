"""Installs the packages built by `make package` into empty environments and uses them in an empty
folder.

`make package` runs these tests with the packages' folder in PACKAGE_DIST and the built commit in
PACKAGE_COMMIT. They download the dependencies.
"""

import json
import os
import re
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml

import aiperf_svc
from aiperf_svc.adapters.host.build import COMPILED_STEPS
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.forge_steps import ROOT, ForgeRunner, action_steps

DIST = Path(os.environ["PACKAGE_DIST"]).resolve()
MEASURED = (ExitCode.OK, ExitCode.VERDICT_INVALID)
"""Exit codes of a finished run. The verdict depends on the load of this machine."""
SHORT = ("--num-requests", "40", "--num-warmup-requests", "5", "--concurrency", "10")
TIMEOUT_S = 600.0
"""Time limit for a command that hangs. On a busy machine, an installation takes minutes."""
MAX_MB = 6.3
"""Maximum unpacked size of the package."""
SIZES = ROOT / "docs" / "decisions" / "0033-size-of-the-plain-install.md"
GROWTH = 1.05
"""Allowed ratio of the plain install to the stated size, because dependencies are not pinned."""


def _pythons() -> list[str]:
    """Return the available Pythons: `python3.N` on PATH, or those of pyenv."""
    found = []
    for minor in range(11, 15):
        pyenv = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3")
        for python in (f"python3.{minor}", *map(str, pyenv)):
            try:
                subprocess.run((python, "-m", "ensurepip", "--version"), check=True)
            except (OSError, subprocess.CalledProcessError):
                continue
            found.append(python)
            break
    versions = {re.search(r"3\.\d+", python)[0] for python in found}  # type: ignore[index]
    missing = {"3.11", "3.12", "3.13"} - versions
    assert not missing or os.environ.get("CI") != "true", f"missing: {', '.join(sorted(missing))}"
    return found


@dataclass(frozen=True)
class Installed:
    """An environment with the package, and an empty working folder."""

    bin: Path
    folder: Path

    def run(self, *command: str, codes: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        done = _run(self.folder, str(self.bin / command[0]), *command[1:])
        assert done.returncode in codes, (done.stdout[-2000:], done.stderr[-2000:])
        return done


def _run(folder: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command without access to this checkout or its environment."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**_environ(folder), **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def _environ(folder: Path) -> Mapping[str, str]:
    """Return an environment without this checkout and its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "HOME": str(folder), "PIP_CACHE_DIR": _cache()}


def _cache() -> str:
    return os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))


def _install(folder: Path, python: str, package: Path, **environ: str) -> Installed:
    """Install a package into an otherwise empty environment."""
    work = folder / "empty"
    work.mkdir()
    for command in (
        (python, "-m", "venv", str(folder / "venv")),
        (str(folder / "venv/bin/pip"), "install", "--quiet", "--no-compile", str(package)),
    ):
        done = _run(work, *command, **environ)
        assert done.returncode == 0, done.stderr
    return Installed(folder / "venv" / "bin", work)


def _only(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


@pytest.fixture(scope="module", params=_pythons())
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """Install the wheel into an environment of each Python."""
    return _install(tmp_path_factory.mktemp("wheel"), request.param, _only("*.whl"))


def _version(installed: Installed) -> dict[str, object]:
    found: dict[str, object] = json.loads(installed.run("aiperf-svc", "version", "--json").stdout)
    return found


def test_wheel_knows_version_commit_and_steps(installed: Installed) -> None:
    found = _version(installed)
    commit = os.environ["PACKAGE_COMMIT"]
    assert (found["version"], found["commit"]) == (aiperf_svc.__version__, commit)
    assert found["interpreted_steps"] == []
    assert (installed.bin / "pulumi-resource-aiperf").is_file()


def test_wheel_measures_the_mock_server(installed: Installed) -> None:
    done = installed.run("aiperf-svc", "bench", *SHORT, codes=MEASURED)
    assert "interpreted" not in done.stderr
    assert [*installed.folder.glob("artifacts/*/profile_export_aiperf.json")]


def test_wheel_measures_a_server(installed: Installed) -> None:
    command = (str(installed.bin / "aiperf-svc"), "mock-server", "--port", "0")
    folder = installed.folder
    with subprocess.Popen(
        command, cwd=folder, env=_environ(folder), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            url = next(
                found[0] for line in server.stdout if (found := re.search(r"http://\S+", line))
            )
            target = ("--url", url, "--model", "mock-model", "--streaming")
            installed.run("aiperf-svc", "profile", *target, *SHORT, codes=MEASURED)
        finally:
            server.terminate()


def test_wheel_previews_its_own_stack_file(installed: Installed) -> None:
    done = installed.run("aiperf-svc", "preview", "bench-100k")
    assert "256 pods" in done.stdout


def test_plain_install_is_no_larger_than_stated(installed: Installed) -> None:
    (packages,) = installed.bin.parent.glob("lib/python3*/site-packages")
    left_out = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
    size = sum(
        path.stat().st_size
        for top in packages.iterdir()
        if not top.name.startswith(left_out)
        for path in (top.rglob("*") if top.is_dir() else (top,))
        if path.is_file() and path.suffix != ".pyc"
    )
    stated = re.search(r"brings (\d+) MB", SIZES.read_text())
    assert stated is not None
    assert size < int(stated[1]) * GROWTH * 1e6


def test_sdist_without_compiler_is_interpreted_and_reported(tmp_path: Path) -> None:
    installed = _install(tmp_path, _pythons()[0], _only("*.tar.gz"), CC="/nowhere/cc")
    names = [name.rpartition("._")[2] for name in COMPILED_STEPS]
    assert _version(installed)["interpreted_steps"] == names
    done = installed.run("aiperf-svc", "bench", *SHORT, codes=MEASURED)
    assert "interpreted, not compiled" in done.stderr


@pytest.mark.parametrize(
    ("tool", "run", "source"), [("uv", ("tool", "run"), "--from"), ("pipx", ("run",), "--spec")]
)
def test_uvx_and_pipx_measure_without_an_installation(
    tmp_path: Path, tool: str, run: Sequence[str], source: str
) -> None:
    program = Path(os.environ["PACKAGE_TOOLS"], tool).resolve()
    wheel = ("--python", _pythons()[0], source, str(_only("*.whl")))
    done = _run(tmp_path, str(program), *run, *wheel, "aiperf-svc", "bench", *SHORT)
    assert done.returncode in MEASURED, done.stderr[-2000:]
    assert [*tmp_path.glob("artifacts/*/profile_export_aiperf.json")]


def test_action_installs_previews_and_runs(tmp_path: Path) -> None:
    work, files, programs = (tmp_path / name for name in ("work", "files", "bin"))
    for each in (work / "stacks", files, programs):
        each.mkdir(parents=True)
    (work / "stacks" / "Pulumi.bench-smoke.yaml").write_text(
        (ROOT / "stacks" / "Pulumi.bench-smoke.yaml").read_text()
    )
    (programs / "python3").write_text(f'#!/bin/sh\nexec {_pythons()[0]} "$@"\n')
    (programs / "python3").chmod(0o755)
    (work / "post").write_text('#!/bin/sh\ncat "$1" >>comments.md\n')
    (work / "post").chmod(0o755)
    environ = {**_environ(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    runner = ForgeRunner(work, files, environ)
    for step, codes in (("preview", (0,)), ("run", MEASURED)):
        flags = {"flags": "--local --ui none"} if step == "run" else {"comment": "./post"}
        steps, known = action_steps({"step": step, "stack": "bench-smoke", **flags})
        runner.known |= known
        assert [runner.run(each) in codes for each in steps] == [True, True]
    assert "### Benchmark stack `bench-smoke`" in (work / "comments.md").read_text()
    assert [case for suite in JUnitXml.fromfile(str(work / "runs/junit.xml")) for case in suite]


def test_page_of_the_package_has_its_readme() -> None:
    with zipfile.ZipFile(_only("*.whl")) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith("dist-info/METADATA"))
        text = wheel.read(name).decode()
    assert text.startswith("Metadata-Version: 2.4\n")
    assert "Description-Content-Type: text/markdown" in text
    assert "\n# aiperf_svc\n" in text
    assert "Classifier: Programming Language :: Python :: 3.13" in text


def test_wheel_holds_program_and_stays_small() -> None:
    with zipfile.ZipFile(_only("*.whl")) as wheel:
        names = wheel.namelist()
        size = sum(each.file_size for each in wheel.infolist())
    libraries = {name.partition(".")[0].replace("/", ".") for name in names if ".so" in name}
    assert libraries == set(COMPILED_STEPS)
    needed = ("__main__.py", "Pulumi.yaml", "stacks/Pulumi.bench-100k.yaml")
    assert {f"aiperf_svc/_infra/{name}" for name in needed} <= set(names)
    assert "aiperf_svc/adapters/jobs/_server_launcher" in names
    assert not [name for name in names if name.endswith((".c", ".h")) or "tests/" in name]
    assert size < MAX_MB * 1e6
