"""What a fork does before it goes on as a command or a mock server: what a program that executes it
would have changed."""

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
"""Name of a function of this module and its arguments."""
_RENEWED = ("aiperf_svc.adapters.inference", "aiperf_svc.services")
"""Packages that take what they need from `time` and `struct` when they are imported."""


def prepare_fork(preparation: Preparation) -> None:
    """Call the function, if there is one."""
    if preparation:
        name, *arguments = preparation
        globals()[str(name)](*arguments)


def enter_namespaces(*paths: str) -> None:
    """Be in the namespaces that these files stand for, in the same folder."""
    libc, folder = ctypes.CDLL(None, use_errno=True), Path.cwd()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(fd)
    os.chdir(folder)


def limit_open_files(count: int) -> None:
    """Have so few file descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def load_library(path: str) -> None:
    """Have this C library under its name, as the dynamic linker finds it at a program's start."""
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def hide_nvml() -> None:
    """Have no library of NVIDIA's driver, which a machine with GPUs has."""
    import pynvml

    def load(name: str) -> NoReturn:
        raise OSError(f"{name}: cannot open shared object file")

    pynvml.CDLL = load


def keep_priority() -> None:
    """Have no service lower its priority, so that other tests do not keep it from working."""
    host.lower_priority = lambda: None  # type: ignore[attr-defined]


def plant_leak(pid_file: str) -> None:
    """Leave something of each kind behind. The processes that this starts have their ids in the
    file, so that whoever planted them can pull them out."""
    listener = socket.create_server(("127.0.0.1", 0))
    fd = os.dup(listener.fileno())
    listener.close()
    processes = (
        _start_sleeper(env=dict(os.environ)),
        # Without an environment nothing but its port tells whose it is.
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
    """Have the workers of the command run this file before they import what it changes, as the
    `sitecustomize` of a process that is executed."""
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
