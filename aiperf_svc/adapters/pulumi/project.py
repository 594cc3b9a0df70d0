"""A Pulumi project to run the CLI in: the program, and a copy of the stack's file.

`stack init` writes a salt into the stack's file. A committed file must not change, so the CLI works
on a copy in a separate folder, with the same state that the plain CLI would use.
"""

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import aiperf_svc
from aiperf_svc.adapters.cluster.ownership import StackInUse
from aiperf_svc.adapters.host.child_processes import is_alive
from aiperf_svc.adapters.pulumi import state as file_state
from aiperf_svc.adapters.pulumi.cli import Lock, executable
from aiperf_svc.adapters.pulumi.state_home import StateHome
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.load_config import STACK_KEY
from aiperf_svc.config.yaml_files import read_yaml, yaml_text
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.json_objects import Json

PASSPHRASE_FILE = "passphrase"
BACKEND, PASSPHRASE = "PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE"
PASSPHRASES = (PASSPHRASE, "PULUMI_CONFIG_PASSPHRASE_FILE")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Location of the state, and the variables that open it."""

    url: str
    """URL of the backend; empty for the backend that `pulumi login` chose."""
    environ: dict[str, str] = field(default_factory=dict)
    notice: str = ""
    """Message for the user about a default that was chosen."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """The Pulumi program that belongs to this version."""

    infra: Path
    project_file: Path


def find_program() -> Program:
    """Find the program: beside the package in a checkout, inside the package in an installed wheel.

    Raises EnvironmentProblem.
    """
    package = Path(aiperf_svc.__file__).parent
    for infra, project in (
        (package / "_infra", package / "_infra" / "Pulumi.yaml"),
        (package.parent / "infra", package.parent / "Pulumi.yaml"),
    ):
        if (infra / "__main__.py").is_file() and project.is_file():
            return Program(infra=infra, project_file=project)
    raise EnvironmentProblem(
        f"the Pulumi program is neither in {package} nor beside it; install aiperf-svc again"
    )


def check_tools(environ: Mapping[str, str]) -> None:
    """Raise EnvironmentProblem if the Pulumi CLI or a package of its program is missing."""
    executable(environ)
    check_packages()


def check_packages() -> None:
    """Raise EnvironmentProblem if a package is missing that the Pulumi program imports."""
    if importlib.util.find_spec("pulumi_kubernetes") is None:
        raise EnvironmentProblem(
            f"the Python of this command ({sys.executable}) lacks the packages of the Pulumi "
            "program; install the extra `stack`: pip install 'aiperf-svc[stack]'"
        )


def make_project(folder: Path, *, stack: str, settings: Mapping[str, Any]) -> None:
    """Make a project with one stack, whose file holds `settings` and nothing else."""
    program = find_program()
    project = read_yaml(program.project_file)
    # This interpreter has the packages that the program needs.
    project["runtime"] = {"name": "python"}
    if sys.prefix != sys.base_prefix:
        project["runtime"]["options"] = {"virtualenv": sys.prefix}
    (folder / "stacks").mkdir(parents=True)
    (folder / "infra").symlink_to(program.infra)
    (folder / "Pulumi.yaml").write_text(yaml_text(project))
    write_stack_file(folder, stack=stack, settings=settings)


def write_stack_file(folder: Path, *, stack: str, settings: Mapping[str, Any]) -> None:
    path = folder / "stacks" / f"Pulumi.{stack}.yaml"
    path.write_text(yaml_text(dict(settings)))


def choose_backend(home: StateHome, environ: Mapping[str, str] = os.environ) -> Backend:
    """Return the user's backend and passphrase. Without a backend, use a folder of this machine.

    Raises ConfigError if a backend needs a passphrase and none is set.
    """
    url, notice = environ.get(BACKEND) or _logged_in(environ), ""
    chosen = {}
    if url is None:
        url = home.backend.as_uri()
        chosen[BACKEND] = url
        notice = f"no Pulumi backend is configured: the stack's state is kept in {home.backend}"
    if file_state.folder_of(url) is not None:
        # The CLI runs in another folder, and must not write a state that becomes unreadable.
        url = chosen[BACKEND] = file_state.without_attributes(url)
    is_service = url.startswith(("http://", "https://"))
    if not is_service and not any(name in environ for name in PASSPHRASES):
        raise ConfigError(
            "the stack's state needs a passphrase, which encrypts its secrets: export "
            f"{PASSPHRASE}=… or {PASSPHRASES[1]}=FILE, with the same value each time"
        )
    return Backend(url=url, environ=chosen, notice=notice)


def ephemeral_backend(folder: Path) -> Backend:
    """Return the state and passphrase in an ephemeral stack's folder, made if needed."""
    state, passphrase = folder / "state", folder / PASSPHRASE_FILE
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not passphrase.exists():
        passphrase.touch(mode=0o600)
        passphrase.write_text(secrets.token_urlsafe(32))
    url = file_state.without_attributes(state.as_uri())
    return Backend(url=url, environ={BACKEND: url, PASSPHRASES[1]: str(passphrase)})


def repair_state(backend: Backend, *, stack: str) -> tuple[str, ...]:
    """Repair a stack's state in a folder after a kill. Returns descriptions of the repairs."""
    folder = file_state.folder_of(backend.url)
    if folder is None:
        return ()
    name = read_yaml(find_program().project_file)["name"]
    try:
        return file_state.repair(folder, project=name, stack=stack)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot look at the state of stack {stack} in {folder}: {error.strerror or error}"
        ) from error


def cli_environment(
    backend: Backend, variables: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables of the CLI's process; `given` are variables for the program."""
    kept = dict(environ)
    if PASSPHRASES[1] in backend.environ:
        kept.pop(PASSPHRASE, None)
    return {
        **kept,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # Without this variable, the CLI refuses `--event-log`.
        "PULUMI_DEBUG_COMMANDS": "true",
        # A language host without support for virtual environments runs the first `python3` on PATH.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
        **backend.environ,
        **variables,
    }


def kubeconfig_with(context: str, files: Sequence[Path]) -> Path:
    """Return the first kubeconfig that has the context; if none has it, the first that exists.
    Pulumi's provider accepts only one file."""
    for file in files:
        with suppress(ConfigError, KeyError, TypeError):
            if any(each["name"] == context for each in read_yaml(file)["contexts"]):
                return file
    return next(filter(Path.is_file, files), files[0])


def read_settings(path: Path) -> Json:
    """Read a stack file, without checking its config. Raises ConfigError."""
    content = read_yaml(path)
    if not isinstance(content, dict) or STACK_KEY not in (content.get("config") or {}):
        raise ConfigError(
            f"{path}: not a stack file: expected `config:` with {STACK_KEY}; a plain config runs "
            "here with `aiperf-svc profile --config FILE`, and with --kubernetes on a cluster"
        )
    return content


def stack_name(path: Path) -> str:
    """Return the stack's name: `bench-smoke` for `stacks/Pulumi.bench-smoke.yaml`."""
    return path.stem.removeprefix("Pulumi.")


def _logged_in(environ: Mapping[str, str]) -> str | None:
    """Return the backend that `pulumi login` chose; None if there is none."""
    if environ.get("PULUMI_ACCESS_TOKEN"):
        return "https://api.pulumi.com"
    path = file_state.pulumi_home(environ) / "credentials.json"
    with suppress(OSError, msgspec.DecodeError, AttributeError):
        known = msgspec.json.decode(path.read_bytes())
        return known.get("current") or None
    return None


def is_pulumi(pid: int) -> bool:
    """Return whether this process is alive and is the CLI: process numbers are reused."""
    if not is_alive(pid):
        return False
    try:
        return "pulumi" in Path(f"/proc/{pid}/comm").read_text(errors="replace")
    except OSError:
        return is_alive(pid)


def check_locks(
    locks: Iterable[Lock],
    *,
    stack: str,
    force: bool,
    host: str | None = None,
    is_alive: Callable[[int], bool] = is_pulumi,
) -> None:
    """Raise EnvironmentProblem unless every lock belongs to a dead process; StackInUse if one
    belongs to a live process.

    A lock of another machine counts as dead only with `force`. A lock of a live process of this
    machine never counts as dead.
    """
    this_host = host or socket.gethostname()
    for lock in locks:
        if lock.host == this_host and is_alive(lock.pid):
            raise StackInUse(
                f"stack {stack}: Pulumi is working on it ({lock}); wait for it, or interrupt it"
            )
        if lock.host != this_host and not force:
            raise EnvironmentProblem(
                f"stack {stack}: its state is locked from another machine ({lock}); if that "
                "process is gone, --force"
            )


async def take_over(
    locks: Sequence[Lock],
    *,
    stack: str,
    say: Say,
    has_ended: Callable[[Lock], Awaitable[bool]] | None = None,
    host: str | None = None,
    is_alive: Callable[[int], bool] = is_pulumi,
) -> bool:
    """Return whether all of these locks belong to processes of this machine that have ended, or to
    pods for which `has_ended` is true. The locks can then be removed. Print each of them."""
    this_host = host or socket.gethostname()
    for lock in locks:
        if lock.host == this_host and not is_alive(lock.pid):
            continue
        if has_ended is None or not await has_ended(lock):
            return False
    if not locks:
        return False
    for lock in locks:
        say(f"stack {stack}: removing the lock of a process that has ended ({lock})")
    return True
