"""The pod of an index of a Job: chooses the shape to run, and starts the shape's server in the
server's own image. Launcher and pod exchange files in a shared folder: the launcher itself, its
arguments, and how the server ended (`_server_launcher.c`)."""

import shutil
import socket
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.plan.index_pods import LAUNCHER, LOOPBACK, SHAPES_ENV, Server
from aiperf_svc.workloads.registry import load_benchmark
from aiperf_svc.workloads.shapes import Shape, index_shapes

BUILT = Path(__file__).parent / f"_{LAUNCHER}"
ENDED = "ended"
PAGE_S = 5.0
"""Timeout of a request to the readiness page of the server."""


class ChosenShape(NamedTuple):
    config: BenchmarkConfig
    number: int
    shape: Shape

    @property
    def configs(self) -> tuple[BenchmarkConfig, ...]:
        return tuple(filter(None, (each.inference for each in self.shape.configs)))


def choose_shape(environ: Mapping[str, str]) -> ChosenShape:
    """Return the shape that the environment variables of the pod name. Raises ConfigError,
    EnvironmentProblem."""
    try:
        numbers = [int(each) for each in environ[SHAPES_ENV].split(",")]
        number = numbers[int(environ["JOB_COMPLETION_INDEX"])]
        config = load_benchmark(Path(environ["AIPERF_CONFIG"])).inference
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; an index is run only in a pod of a Job"
        ) from error
    assert config is not None
    return ChosenShape(config, number, index_shapes(config)[number - 1])


def write_server(folder: Path, server: Server, *, launcher: Path = BUILT) -> None:
    """Write the launcher and the files that it reads. Raises EnvironmentProblem."""
    if not launcher.is_file():
        raise EnvironmentProblem(
            "this image has no launcher for servers in Jobs: it was built without a C compiler; "
            "use the image of a release, or build that of a checkout with a BUILDER that has a "
            "compiler (docs/walkthrough.md#the-image)"
        )
    variables = [f"{name}={value}" for name, value in server.env.items()]
    try:
        (folder / "argv").write_bytes(_ended_by_zero(server.command))
        (folder / "env").write_bytes(_ended_by_zero(variables))
        shutil.copy(launcher, folder / LAUNCHER)
        (folder / LAUNCHER).chmod(0o755)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {folder}: {error.strerror or error}") from error


def end_of_server(folder: Path) -> str:
    """Return how the server ended; empty while it runs."""
    try:
        return one_line((folder / ENDED).read_text(errors="replace"))
    except OSError:
        return ""


def _ended_by_zero(texts: "tuple[str, ...] | list[str]") -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)


def readiness_problem(port: int, path: str | None) -> str:
    """Return why the server is not ready; empty if it is. Blocks."""
    try:
        if path is None:
            socket.create_connection((LOOPBACK, port), timeout=PAGE_S).close()
            return ""
        # Ignore proxy variables of the image: a proxy cannot reach this pod's loopback.
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"http://{LOOPBACK}:{port}{path}", timeout=PAGE_S):
            return ""
    except HTTPError as error:
        with error:
            return f"{path}: status {error.code}"
    except (OSError, HTTPException) as error:
        return one_line(f"port {port}: {error}")
