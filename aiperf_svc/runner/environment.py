"""Environment variables of the processes of a local run, as `services.context` reads them."""

import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.adapters.storage.uploads import KEY_VARIABLES, TOKEN_VARIABLE
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import save_config
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.options import RunOptions

KEPT = ("AIPERF_LOG_LEVEL", "AIPERF_DEBUG")
"""Variables of the user's environment that are passed on; all others with this prefix are set by
the launcher."""
LOOPBACK = "127.0.0.1"


def new_run_id() -> str:
    """Return an id for a run."""
    return secrets.token_hex(6)


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """One run on this machine, before its processes are started."""

    config: Config
    topology: Topology
    options: RunOptions
    private: Path
    """Folder that goes with the run."""
    artifacts: Path
    logs: Path
    run_id: str = field(default_factory=new_run_id)

    @property
    def results_socket(self) -> Path:
        """Socket file over which the run is followed."""
        return self.private / "results.sock"

    @property
    def title(self) -> str:
        """The run in a few words."""
        config = self.config
        if not isinstance(config, BenchmarkConfig):
            return f"{config.name} · {config.workload.kind}"
        return f"{config.name} · {config.endpoint.url} · {config.endpoint.model}"

    def write_files(self) -> None:
        """Write what the processes read: config, topology, keys. Raises EnvironmentProblem."""
        try:
            save_config(self.config, self.private / "config.yaml")
            (self.private / "topology.json").write_bytes(msgspec.json.encode(self.topology))
            if self.config.deployment.transport.curve:
                keys = self.private / "curve"
                keys.mkdir(mode=0o700)
                CurveKeys.make().save(keys)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {self.private}: {error.strerror or error}; "
                "free some space there, or give temporary files another place (TMPDIR)"
            ) from error

    def shared_environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables of all processes. Over TCP, this chooses free ports."""
        given = {k: v for k, v in environ.items() if not k.startswith("AIPERF_") or k in KEPT}
        transport = self.config.deployment.transport
        given = (
            PROCESS_ENVIRONMENT
            | given
            | {
                "AIPERF_RUN_ID": self.run_id,
                "AIPERF_CONFIG": str(self.private / "config.yaml"),
                "AIPERF_TOPOLOGY": str(self.private / "topology.json"),
                "AIPERF_BUS": f"ipc://{self.private}",
                "AIPERF_ARTIFACTS": str(self.artifacts),
                "AIPERF_STATE_DIR": str(self.private),
                "AIPERF_RESULTS_SOCKET": str(self.results_socket),
                "AIPERF_LOG_DIR": str(self.logs),
                "AIPERF_PARENT_PID": str(os.getpid()),
                "AIPERF_CLI_COMMAND": self.options.cli_command,
            }
        )
        if self.options.upload_into:
            given["AIPERF_UPLOAD_INTO"] = self.options.upload_into
        if self.options.is_held:
            given["AIPERF_HELD"] = "1"
        if self.options.resume is not None:
            given["AIPERF_RESUMES"] = "1"
        if self.options.verbose:
            given["AIPERF_LOG_LEVEL"] = "DEBUG"
        if transport.kind == "tcp":
            given |= {
                "AIPERF_BUS": f"tcp://{LOOPBACK}",
                "AIPERF_PORTS": json.dumps(free_ports()),
                "AIPERF_ADVERTISE": LOOPBACK,
            }
        if transport.curve:
            given["AIPERF_CURVE_DIR"] = str(self.private / "curve")
        return given

    def environment_of(
        self, name: str, services: tuple[Service, ...], shared: Mapping[str, str]
    ) -> dict[str, str]:
        """Variables of one process; secrets of the target are for workers only, those of an upload
        and of pages of metrics for the records manager."""
        own = {**shared, "AIPERF_SERVICE_ID": name}
        if self.config.artifacts.s3 and Service.RECORDS_MANAGER not in services:
            for variable in (*KEY_VARIABLES, TOKEN_VARIABLE):
                own.pop(variable, None)
        if Service.WORKER in services:
            own |= self.options.secrets
        else:
            for variable in self._secret_variables:
                own.pop(variable, None)
        pages = self._pages_variable
        if Service.RECORDS_MANAGER in services:
            for given in (shared, self.options.secrets):
                own |= {name: value for name, value in given.items() if name == pages}
        elif pages is not None and pages not in self._secret_variables:
            own.pop(pages, None)
        return own

    @property
    def _pages_variable(self) -> str | None:
        """Variable with the key of pages of metrics."""
        config = self.config
        return config.telemetry.key_env if isinstance(config, BenchmarkConfig) else None

    @property
    def _secret_variables(self) -> tuple[str, ...]:
        """Variables that are for workers only."""
        config = self.config
        if not isinstance(config, BenchmarkConfig):
            return tuple(config.workload.secret_env)
        return (config.endpoint.api_key_env,) if config.endpoint.api_key_env else ()


def free_ports() -> dict[str, int]:
    """A free port of the loopback interface for every port of the map that has one binder."""
    names = [port.name for port in Port if port not in (Port.RAW_DIRECT, Port.RESULTS_API)]
    held: list[socket.socket] = []
    try:
        for _ in names:
            held.append(socket.socket())
            held[-1].bind((LOOPBACK, 0))
        return {name: s.getsockname()[1] for name, s in zip(names, held, strict=True)}
    finally:
        for each in held:
            each.close()
