"""The folder through which an index starts its server in the image of that server: the launcher,
what it starts, and what became of it (`_server_launcher.c`)."""

import shutil
from pathlib import Path

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.plan.index_pods import LAUNCHER, Server

BUILT = Path(__file__).parent / f"_{LAUNCHER}"
ENDED = "ended"


def write_server(folder: Path, server: Server, *, launcher: Path = BUILT) -> None:
    """Write the launcher, and what it is to start. Raises EnvironmentProblem."""
    if not launcher.is_file():
        raise EnvironmentProblem(
            "this image has no launcher for servers in Jobs: it was built without a C compiler; "
            "build it with a BUILDER that has one (images/Containerfile)"
        )
    variables = [f"{name}={value}" for name, value in server.env.items()]
    try:
        (folder / "argv").write_bytes(_ended_by_zero(server.command))
        (folder / "env").write_bytes(_ended_by_zero(variables))
        shutil.copy(launcher, folder / LAUNCHER)
        (folder / LAUNCHER).chmod(0o755)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {folder}: {error.strerror or error}") from error


def how_ended(folder: Path) -> str:
    """Return how the server has ended; empty while it runs."""
    try:
        return one_line((folder / ENDED).read_text(errors="replace"))
    except OSError:
        return ""


def _ended_by_zero(texts: "tuple[str, ...] | list[str]") -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)
