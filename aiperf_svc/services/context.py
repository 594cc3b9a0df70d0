"""Reads the context of a service from the environment: its name, the run, the config, the plan and
the addresses of its sockets.

The launcher and the Pulumi program set the same variables, so a service does not know where it
runs.

It also contains the objects that a process keeps across the trials of an experiment.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Protocol

import msgspec

from aiperf_svc.adapters.exports.manifest import TEMPORARY_SUFFIX
from aiperf_svc.adapters.host.vitals import boot_id
from aiperf_svc.adapters.messaging.bus import Addresses, Bus
from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.adapters.messaging.proxies import Proxies
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.search import Search
from aiperf_svc.config.workload import AnyWorkloadConfig, Config
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.ports import REPLICAS
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.workloads.registry import load_benchmark

if TYPE_CHECKING:
    # It imports the formats of results, which workers do not need.
    from aiperf_svc.adapters.results_api.provider import TrialResults


class TrialSequence(Protocol):
    """Decides which trial follows."""

    def trial_ended(self, state: RunState, reason: str, finding: Finding | None) -> None:
        """Record the end of the current trial and its finding."""
        ...

    def cancel(self, reason: str) -> None:
        """Start no more trials."""
        ...


class ResultsOfTrials(Protocol):
    """Collects the results of all trials and serves them."""

    @property
    def search(self) -> Search | None:
        """The search of the experiment; None if it has none."""
        ...

    def bucket_folder(self, folder: str) -> str:
        """Return the folder in the bucket for the trial with this folder."""
        ...

    async def set_results(self, results: "TrialResults") -> None:
        """Set the records manager of the current trial. Raises EnvironmentProblem."""
        ...

    async def add(self, state: RunState, reason: str, results: RunResult | None) -> Finding | None:
        """Record the end of the current trial. Returns the finding for the next choice."""
        ...


@dataclass(kw_only=True)
class ExperimentContext:
    """Objects of a process that all trials of an experiment share."""

    proxies: Proxies | None = None
    """Set in the process of the system controller, as is `sequence`."""
    sequence: TrialSequence | None = None
    results: ResultsOfTrials | None = None
    """Set in the process of the records manager."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Describes one process's part in a run."""

    run_id: str
    instance: str
    """Name of this process or pod. A service that shares it with others appends its own name."""
    config: Config
    topology: Topology
    addresses: Addresses
    artifacts: Path
    """Folder of the results."""
    state: Path
    """Folder for data that must outlive a restart of the process but not the run."""
    ends_with_run: bool = True
    """True if the process ends after the run. Kubernetes would restart a pod."""
    api_token: str = ""
    metrics_token: str = ""
    """Token that gives access to the metrics page only; empty if there is none."""
    results_socket: Path | None = None
    """Socket file of the results API if the runner is on this machine; otherwise HTTP is used."""
    api_port: int = 9090
    namespace: str = ""
    """Namespace of this pod, if its service needs to know it."""
    curve: CurveKeys | None = None
    run: RunValues = field(default_factory=RunValues)
    experiment: ExperimentContext | None = None
    """Objects of this process that the trials share; None without an experiment."""
    epoch: int = field(default_factory=time_ns)
    boot_id: str = field(default_factory=boot_id)

    @property
    def inference(self) -> BenchmarkConfig:
        """Return the config of a run that measures an inference server."""
        config = self.config.inference
        assert config is not None
        return config

    @property
    def ranks(self) -> AnyWorkloadConfig:
        """Return the config of a run whose workers are ranks."""
        config = self.config.tool
        assert config is not None
        return config

    def id_of(self, service: Service) -> str:
        """Return the id of a service of this process."""
        return self.instance if service in REPLICAS else service.value


def read_context(environ: Mapping[str, str] = os.environ) -> RunContext:
    """Return the context in the environment variables. Raises EnvironmentProblem, ConfigError."""
    try:
        return RunContext(
            run_id=environ["AIPERF_RUN_ID"],
            instance=environ["AIPERF_SERVICE_ID"],
            config=load_benchmark(Path(environ["AIPERF_CONFIG"])),
            topology=msgspec.json.decode(
                Path(environ["AIPERF_TOPOLOGY"]).read_bytes(), type=Topology
            ),
            addresses=read_addresses(environ),
            artifacts=Path(environ["AIPERF_ARTIFACTS"]),
            state=_state_folder(environ),
            ends_with_run="AIPERF_PARENT_PID" in environ,
            api_token=environ.get("AIPERF_API_TOKEN", ""),
            namespace=environ.get("AIPERF_NAMESPACE", ""),
            metrics_token=environ.get("AIPERF_METRICS_TOKEN", ""),
            results_socket=_path(environ.get("AIPERF_RESULTS_SOCKET")),
            api_port=int(environ.get("AIPERF_RESULTS_PORT", "9090")),
            curve=read_curve(environ),
            run=RunValues.read(environ),
        )
    except KeyError as error:
        raise EnvironmentProblem(
            f"{error.args[0]} is not set; services are started by `profile`, `run` or a stack"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise EnvironmentProblem(f"cannot read the run's files: {error}") from error


def read_addresses(environ: Mapping[str, str]) -> Addresses:
    """Return the addresses of the run's sockets. Raises KeyError."""
    return Addresses(
        base=environ["AIPERF_BUS"].rstrip("/"),
        ports=json.loads(environ.get("AIPERF_PORTS", "{}")),
        hosts=json.loads(environ.get("AIPERF_HOSTS", "{}")),
        advertise=environ.get("AIPERF_ADVERTISE", ""),
    )


def read_curve(environ: Mapping[str, str]) -> CurveKeys | None:
    """Return the keys of this process; None if its sockets are not encrypted."""
    folder = environ.get("AIPERF_CURVE_DIR")
    return CurveKeys.load(Path(folder)) if folder else None


def make_bus(context: RunContext) -> Bus:
    """Return a bus that creates the sockets of this process."""
    return Bus(context.addresses, curve=context.curve)


def _state_folder(environ: Mapping[str, str]) -> Path:
    """Return the state folder; without AIPERF_STATE_DIR, a temporary part of the artifacts."""
    folder = environ.get("AIPERF_STATE_DIR")
    return (
        Path(folder) if folder else Path(environ["AIPERF_ARTIFACTS"]) / f"state{TEMPORARY_SUFFIX}"
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None
