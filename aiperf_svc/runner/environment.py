"""Environment variables of the processes of a local run, as `services.context` reads them."""

import json
import os
import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aiperf_svc.adapters.host.machine import free_ports
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.adapters.storage.uploads import KEY_VARIABLES, TOKEN_VARIABLE
from aiperf_svc.config.load_config import save_config
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.process_environment import PROCESS_ENVIRONMENT, USER_MASK, USER_VARIABLES
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.workloads.registry import workload_of

KEPT = ("AIPERF_LOG_LEVEL", "AIPERF_DEBUG", USER_MASK)
"""Variables with the prefix AIPERF_ that processes inherit from this one. The launcher sets all
others."""
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
    run: RunValues = field(default_factory=RunValues)
    private: Path
    """Temporary folder, removed with the run."""
    artifacts: Path
    logs: Path
    run_id: str = field(default_factory=new_run_id)

    @property
    def results_socket(self) -> Path:
        """Socket file over which the run is followed."""
        return self.private / "results.sock"

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
                "free some space there, or set TMPDIR to another folder"
            ) from error

    def shared_environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables of all processes. Over TCP, this chooses free ports."""
        kept = {k: v for k, v in environ.items() if not k.startswith("AIPERF_") or k in KEPT}
        transport, options = self.config.deployment.transport, self.options
        own = {
            **PROCESS_ENVIRONMENT,
            **kept,
            USER_VARIABLES: " ".join(kept.keys() & PROCESS_ENVIRONMENT),
            "AIPERF_RUN_ID": self.run_id,
            "AIPERF_CONFIG": str(self.private / "config.yaml"),
            "AIPERF_TOPOLOGY": str(self.private / "topology.json"),
            "AIPERF_BUS": f"ipc://{self.private}",
            "AIPERF_ARTIFACTS": str(self.artifacts),
            "AIPERF_STATE_DIR": str(self.private),
            "AIPERF_RESULTS_SOCKET": str(self.results_socket),
            "AIPERF_LOG_DIR": str(self.logs),
            "AIPERF_PARENT_PID": str(os.getpid()),
            **self.run.environment(),
        }
        if options.verbose:
            own["AIPERF_LOG_LEVEL"] = "DEBUG"
        if transport.kind == "tcp":
            own |= {
                "AIPERF_BUS": f"tcp://{LOOPBACK}",
                "AIPERF_PORTS": json.dumps(free_ports()),
                "AIPERF_ADVERTISE": LOOPBACK,
            }
        if transport.curve:
            own["AIPERF_CURVE_DIR"] = str(self.private / "curve")
        return own

    def environment_of(
        self, name: str, services: tuple[Service, ...], shared: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the variables of one process. A secret goes only to the services that need it."""
        needed_by = self._services_of_secrets()
        own = {
            variable: value
            for variable, value in {**shared, **self.options.secrets}.items()
            if variable not in needed_by or not needed_by[variable].isdisjoint(services)
        }
        return own | {"AIPERF_SERVICE_ID": name}

    def _services_of_secrets(self) -> dict[str, set[Service]]:
        """Return the services that need each secret variable. A variable can have several
        purposes."""
        found: defaultdict[str, set[Service]] = defaultdict(set)
        for each in workload_of(self.config).secrets(self.config):
            found[each.variable].update(each.services)
        if self.config.artifacts.s3:
            for variable in (*KEY_VARIABLES, TOKEN_VARIABLE):
                found[variable].add(Service.RECORDS_MANAGER)
        # The keys of the targets of other trials.
        for variable in self.options.secrets.keys() - found.keys():
            found[variable].add(Service.WORKER)
        return found
