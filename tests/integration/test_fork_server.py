"""Services as forks of one process: their parents, their environment, and their exit."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from aiperf_svc.adapters.host.processes import adopted_process, ended
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.runner import fork_server
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.process_placement import SERVICE_COMMAND
from aiperf_svc.services.forks import Order

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")


def order(folder: Path, service: str, **environ: str) -> Order:
    """Return an order for a service that exits immediately because its environment names no run."""
    output = str(folder / f"{service}.stderr")
    return Order([service], environ, output, [*SERVICE_COMMAND, service])


def start(server: ForkServer, orders: list[Order]) -> list[int]:
    server.order(orders)
    asyncio.run(ended(server.child.pid, server.child.poll))
    return server.adopt()


def children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end between listing and reading.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


def test_fork_is_a_child_with_its_own_environment(tmp_path: Path) -> None:
    stuck = str(tmp_path / "stuck")
    os.mkfifo(stuck)
    config = tmp_path / "config.yaml"
    config.write_text(
        "{endpoint: {url: 'http://h', model: m}, load: {concurrency: 1, requests: 1}}"
    )
    with fork_server.starting() as server:
        assert server is not None
        # The service waits until a topology is written.
        environ = {
            "AIPERF_RUN_ID": "run",
            "AIPERF_SERVICE_ID": "worker-0",
            "AIPERF_CONFIG": str(config),
            "AIPERF_TOPOLOGY": stuck,
            "AIPERF_PARENT_PID": str(os.getpid()),
        }
        (pid,) = start(server, [order(tmp_path, "worker", **environ)])
    process = adopted_process("worker-0", pid, stderr=tmp_path / "worker.stderr")
    with Path(stuck).open("w") as topology:
        assert pid in children()
        assert os.getsid(pid) == pid
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        assert words == [*SERVICE_COMMAND, "worker"]
        topology.write("no topology")
    assert asyncio.run(process.wait()) == ExitCode.ERROR
    assert "cannot read the run's files" in process.stderr.read_text()


def test_forks_of_two_servers_are_adopted_and_awaited(tmp_path: Path) -> None:
    with fork_server.starting() as first, fork_server.starting() as second:
        for server, names in (
            (first, ("worker", "record-processor")),
            (second, ("timing-manager",)),
        ):
            assert server is not None
            orders = [order(tmp_path, name) for name in names]
            for pid, each in zip(start(server, orders), orders, strict=True):
                process = adopted_process("fork", pid, stderr=Path(each.output))
                assert asyncio.run(process.wait()) == ExitCode.ERROR
                assert process.exit_code == ExitCode.ERROR
                assert "AIPERF_RUN_ID is not set" in process.stderr.read_text()


def test_variables_not_needed_at_start_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hush")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    with fork_server.starting() as server:
        assert server is not None
        # The environment is empty until the kernel has set up the program.
        path = Path(f"/proc/{server.child.pid}/environ")
        while not (environ := path.read_bytes().split(b"\0"))[0]:
            assert server.child.poll() is None
    assert not any(b"hush" in each for each in environ)
    assert b"OPENBLAS_NUM_THREADS=1" in environ


def test_unadopted_forks_exit(tmp_path: Path) -> None:
    before = set(children())
    with fork_server.starting() as server:
        assert server is not None
        server.order([order(tmp_path, "worker"), order(tmp_path, "worker")])
        asyncio.run(ended(server.child.pid, server.child.poll))
    left = set(children()) - before
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in left]
    assert codes == [ExitCode.INTERRUPTED] * 2
    assert (tmp_path / "worker.stderr").read_text() == ""


def test_dead_server_is_an_environment_error(tmp_path: Path) -> None:
    with fork_server.starting() as server:
        assert server is not None
        os.kill(server.child.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentProblem, match="cannot start the services"):
            start(server, [order(tmp_path, "worker")])


def test_service_imports_start_no_thread() -> None:
    """Forking a process with several threads is unsafe, and aiohttp takes long to import."""
    code = "import sys; from aiperf_svc.services import forks as f; f._import_services()"
    code += "; print(f._is_single_threaded(), 'aiohttp' in sys.modules)"
    environ = os.environ | PROCESS_ENVIRONMENT
    done = subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE)
    assert done.stdout == b"True False\n"


def test_services_are_executed_without_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIPERF_FORK", "0")
    with fork_server.starting() as server:
        assert server is None
