"""Functions that a fork calls before it continues as a command or a mock server. They replace
changes that a wrapper program would make before it executes the command."""

import ctypes
import os
import resource
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import NoReturn

from aiperf_svc.services import forks, host

Preparation = tuple[str | int, ...]
"""Name of a function in this module, and its arguments."""
_RENEWED = ("aiperf_svc.adapters.inference", "aiperf_svc.services")
"""Packages that copy functions from `time` and `struct` at import."""


def prepare_fork(preparation: Preparation) -> None:
    """Call the function if there is one."""
    if preparation:
        name, *arguments = preparation
        globals()[str(name)](*arguments)


def enter_namespaces(*paths: str) -> None:
    """Enter the namespaces of these files and keep the working directory."""
    libc, folder = ctypes.CDLL(None, use_errno=True), Path.cwd()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(fd)
    os.chdir(folder)


def limit_open_files(count: int) -> None:
    """Limit the number of open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def load_library(path: str) -> None:
    """Load a C library under its own name, as the dynamic linker does at program start."""
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def hide_nvml() -> None:
    """Make NVIDIA's driver library unavailable, also on machines with GPUs."""
    import pynvml

    def load(name: str) -> NoReturn:
        raise OSError(f"{name}: cannot open shared object file")

    pynvml.CDLL = load


def keep_priority() -> None:
    """Keep services at normal priority, so that other tests cannot starve them."""
    host.lower_priority = lambda: None  # type: ignore[attr-defined]


def plant_leak(pid_file: str) -> None:
    """Leave a process, a port and files behind. The ids of the started processes are in the file,
    so that the caller can end them."""
    listener = socket.create_server(("127.0.0.1", 0))
    fd = os.dup(listener.fileno())
    listener.close()
    processes = (
        _start_sleeper(env=dict(os.environ)),
        # Without an environment, only its port identifies its owner.
        _start_sleeper(env={}, fd=fd),
    )
    Path(pid_file).write_text(" ".join(str(process.pid) for process in processes))
    Path(os.environ["TMPDIR"], "left").touch()
    Path("left").touch()


def _start_sleeper(*, env: dict[str, str], fd: int | None = None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["/bin/sleep", "600"],
        env=env,
        pass_fds=() if fd is None else (fd,),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def patch_workers(path: str) -> None:
    """Make workers run this file before they import the modules that it patches, like
    `sitecustomize` in an executed process."""
    patch = compile(Path(path).read_text(), path, "exec")
    become = forks._become_service

    def become_patched(*order: object) -> list[str]:
        services: list[str] = become(*order)  # type: ignore[arg-type]
        if services == ["worker"]:
            _run_first(patch)
        return services

    forks._become_service = become_patched  # type: ignore[assignment]


def _run_first(patch: CodeType) -> None:
    real_ns = time.time_ns
    exec(patch, {"__name__": "sitecustomize"})
    for name, module in list(sys.modules.items()):
        if name.startswith(_RENEWED) and module is not None:
            del sys.modules[name]
        elif name.startswith("aiperf_svc") and vars(module or time).get("time_ns") is real_ns:
            module.time_ns = time.time_ns  # type: ignore[attr-defined]
    import_module("aiperf_svc.services.worker")
