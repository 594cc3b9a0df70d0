"""Measures the five singletons at 2,000 workers and 500 record processors: a million users.

    python -m benchmarks.control_plane --workers 2000 --seconds 30

The singletons are the product's own processes. Workers and record processors are stubs
(`benchmarks.service_stubs`) that use the real protocol on real sockets, including CURVE, at
realistic rates. Raw records are omitted, because at this size they go from worker to processor
without a singleton. Stubs and singletons share this machine's cores, so times are upper bounds; CPU
seconds per second and memory are measured per process.

Prints for each singleton its CPU during registration and during the load, and its memory. Also
prints the duration of registration, the lateness of credits (user time lost while waiting for a
credit), the time until a record was acknowledged, and whether the accounts are exact.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zmq

from aiperf_svc.adapters.host.machine import raise_fd_limit
from aiperf_svc.adapters.messaging.bus import DOWN, decode
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.plan.topology import SINGLETONS, Facts, plan
from aiperf_svc.protocol.messages.events import RunStatePublished
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.services.context import read_context
from benchmarks import machine_use
from benchmarks.service_stubs.stub import RESPONSE_S, PlainBus

ROOT = Path(__file__).parents[1]
SAMPLE_S = 0.5
END_S = 20.0
MIB = 2**20


class Sample(NamedTuple):
    """All processes at one time."""

    at_s: float
    state: str
    cpu_s: dict[str, float]
    memory: dict[str, int]


def config_of(options: argparse.Namespace) -> BenchmarkConfig:
    """Return a config whose plan has the requested numbers of workers and processors."""
    transport = {"kind": "tcp", "curve": options.transport == "curve"}
    return BenchmarkConfig.model_validate(
        {
            "name": "control-plane",
            "endpoint": {"url": "http://127.0.0.1:1", "model": "none", "streaming": True},
            "load": {
                "concurrency": options.workers * options.users,
                "duration": f"{options.seconds}s",
                "grace_period": "10s",
            },
            "dataset": {"entries": 1_000, "input_tokens": {"mean": 32}},
            "workers": {
                "connections_per_worker": options.users,
                "record_processors": options.processors or -(-options.workers // 4),
            },
            "deployment": {
                "transport": {"kind": "ipc"} if options.transport == "ipc" else transport,
                "registration_timeout": "10m",
            },
            "artifacts": {"jsonl_limit": 0},
        }
    )


class Simulation:
    """The processes of one run."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.config = config = config_of(options)
        self.topology = plan(config, Facts(where="cluster", fd_limit=raise_fd_limit()))
        self.run = LocalRun(
            config=config,
            topology=self.topology,
            options=RunOptions(),
            private=folder / "private",
            artifacts=folder / "artifacts",
            logs=folder / "logs",
        )
        for each in (self.run.private, self.run.artifacts, self.run.logs):
            each.mkdir()
        self.run.write_files()
        self._shared = self.run.shared_environment() | {"PYTHONPATH": str(ROOT)}
        self._stubs = options.stub_processes
        self.singletons: dict[str, subprocess.Popen[bytes]] = {}
        self.stubs: list[subprocess.Popen[bytes]] = []
        self.samples: list[Sample] = []
        self.states: dict[str, float] = {}
        self._began = 0.0

    def start(self) -> None:
        """Start the singletons, then all other processes at once."""
        for service in SINGLETONS:
            environ = self._environment(service.value, (service,))
            command = [*OWN_PROGRAM, "service", service.value]
            self.singletons[service.value] = self._popen(command, service.value, environ)
        self._watcher = self._subscribe()
        self._began = time.monotonic()
        for share in range(self._stubs):
            name = f"stubs-{share}"
            command = [sys.executable, "-m", "benchmarks.service_stubs"]
            command += ["--workers", str(self.topology.workers)]
            command += ["--processors", str(self.topology.record_processors)]
            command += ["--share", str(share), "--of", str(self._stubs)]
            command += ["--result", str(self.run.private / f"{name}.json")]
            environ = self._environment(name, (Service.WORKER,))
            self.stubs.append(self._popen(command, name, environ))

    def _environment(self, name: str, services: tuple[Service, ...]) -> dict[str, str]:
        return self.run.environment_of(name, services, self._shared)

    def _popen(
        self, command: list[str], name: str, environ: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        with (self.run.logs / f"{name}.stderr").open("wb") as log:
            return subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=ROOT)

    def _subscribe(self) -> Any:
        bus = PlainBus(read_context(self._environment("watcher", ())))
        sock = bus.connect(zmq.SUB, Port.EVENTS_OUT)
        sock.setsockopt(zmq.SUBSCRIBE, DOWN)
        return sock

    def follow(self, at_most_s: float) -> None:
        """Sample until the run has ended. Raises SystemExit when a process dies or time is up."""
        state, sample_at = RunState.PENDING, 0.0
        while not state.is_final:
            now = time.monotonic() - self._began
            if now >= sample_at:
                sample_at = now + SAMPLE_S
                self.samples.append(self._sample(now, state))
            if self._watcher.poll(100):
                message = decode(self._watcher.recv_multipart()[-1])
                if isinstance(message, RunStatePublished) and message.state is not state:
                    state = message.state
                    self.states[state.value] = time.monotonic() - self._began
                    print(f"{now:7.1f} s {state.value} {message.reason}", file=sys.stderr)
            dead = [p.args for p in (*self.singletons.values(), *self.stubs) if p.poll()]
            if dead or now > at_most_s:
                problem = dead or "takes too long"
                raise SystemExit(f"after {now:.0f} s, {state.value}: {problem}; {self._last()}")

    def _last(self) -> str:
        """Return the CPU of all processes so far."""
        return str({name: round(s, 1) for name, s in self.samples[-1].cpu_s.items()})

    def _sample(self, at_s: float, state: RunState) -> Sample:
        pids = {name: process.pid for name, process in self.singletons.items()}
        cpu = {name: machine_use.cpu_s([pid]) for name, pid in pids.items()}
        cpu["stubs"] = machine_use.cpu_s(process.pid for process in self.stubs)
        memory = {name: machine_use.pss_bytes([pid]) for name, pid in pids.items()}
        return Sample(at_s, state.value, cpu, memory)

    def results(self) -> list[dict[str, Any]]:
        """Return the stubs' results after all have ended."""
        for process in self.stubs:
            process.wait(END_S)
        return [
            json.loads((self.run.private / f"stubs-{share}.json").read_text())
            for share in range(self._stubs)
        ]

    def end(self) -> None:
        """End all processes."""
        everybody = (*self.stubs, *self.singletons.values())
        for process in everybody:
            if process.poll() is None:
                process.terminate()
        for process in everybody:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def report(simulation: Simulation, stubs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all measurements."""
    samples, states = simulation.samples, simulation.states
    ready = states["profiling"]
    load = [s for s in samples if s.state == RunState.PROFILING]
    begin = next((s for s in load if s.at_s > ready + 2), load[0])
    joined = [s for s in samples if s.state in (RunState.PENDING, RunState.CONFIGURING)]
    round_trips = np.concatenate([np.array(s["round_trips_ms"]) for s in stubs])
    acknowledged = np.concatenate([np.array(s["acknowledge_s"]) for s in stubs])
    user_s = sum(s["user_s"] for s in stubs)
    completed = sum(s["completed"] for s in stubs)
    summary = simulation.run.artifacts / "profile_export_aiperf.json"
    own = json.loads(summary.read_text())["aiperf_svc"] if summary.exists() else {}
    return {
        "workers": simulation.topology.workers,
        "record_processors": simulation.topology.record_processors,
        "users": simulation.config.load.concurrency,
        "requests_per_s": round((simulation.config.load.concurrency or 0) / RESPONSE_S),
        "all_registered_s": round(states["configuring"], 2),
        "profiling_began_s": round(ready, 2),
        "load_s": round(load[-1].at_s - begin.at_s, 1),
        "singletons": {
            name: {
                "cpu_s_to_register": round(joined[-1].cpu_s[name], 2),
                "cpu_of_a_core_under_load": round(
                    (load[-1].cpu_s[name] - begin.cpu_s[name]) / (load[-1].at_s - begin.at_s), 3
                ),
                "memory_mib": round(max(s.memory.get(name, 0) for s in samples) / MIB),
            }
            for name in (*simulation.singletons, "stubs")
        },
        "user_time_without_credit": sum(s["starved_user_s"] for s in stubs) / user_s,
        "longest_wait_for_credit_s": round(max(s["longest_wait_s"] for s in stubs), 3),
        "credit_socket_round_trip_ms": _quantiles(round_trips),
        "record_to_acknowledgement_s": _quantiles(acknowledged),
        "requests": completed,
        "records": sum(s["rows"] for s in stubs),
        "final_state": stubs[0]["final_state"],
        "processing_s": round(states.get("done", 0) - states.get("processing", 0), 1),
        "accounts": [r for r in own.get("reasons", ()) if r.get("check") == "accounts"],
        "verdict": own.get("verdict"),
        "seconds": {name: round(at, 2) for name, at in states.items()},
    }


def _quantiles(values: "np.ndarray[Any, Any]") -> dict[str, float]:
    if not len(values):
        return {}
    points = {"p50": 50, "p99": 99, "max": 100}
    return {name: round(float(np.percentile(values, q)), 3) for name, q in points.items()}


def show(found: dict[str, Any]) -> None:
    """Print the measurements as text."""
    print(
        f"{found['workers']:,} workers, {found['record_processors']:,} record processors, "
        f"{found['users']:,} users, {found['requests_per_s']:,} requests/s\n"
        f"all registered after {found['all_registered_s']} s, load from "
        f"{found['profiling_began_s']} s, for {found['load_s']} s\n"
        f"{'':18}{'CPU s to register':>20}{'of a core, load':>18}{'memory MiB':>12}"
    )
    for name, each in found["singletons"].items():
        print(
            f"{name:18}{each['cpu_s_to_register']:>20}{each['cpu_of_a_core_under_load']:>18.1%}"
            f"{each['memory_mib']:>12,}"
        )
    print(
        f"user time without a credit {found['user_time_without_credit']:.4%}, longest wait "
        f"{found['longest_wait_for_credit_s']} s\n"
        f"credit socket round trip, ms: {found['credit_socket_round_trip_ms']}\n"
        f"record to acknowledgement, s: {found['record_to_acknowledgement_s']}\n"
        f"{found['requests']:,} requests, {found['records']:,} records, {found['final_state']}; "
        f"accounts {found['accounts'] or 'exact'}; verdict {found['verdict']}"
    )


def main() -> int:
    """Run the simulation and print its figures. Return 0 if the accounts are exact."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--processors", type=int, default=0, help="default: a quarter of them")
    parser.add_argument("--users", type=int, default=500, help="of each worker")
    parser.add_argument("--seconds", type=int, default=30, help="of load")
    parser.add_argument("--stub-processes", type=int, default=0, help="default: 250 workers each")
    parser.add_argument("--transport", choices=("curve", "tcp", "ipc"), default="curve")
    parser.add_argument("--most-seconds", type=float, default=270.0, help="then give up")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.stub_processes = options.stub_processes or -(-options.workers // 250)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        simulation = Simulation(options, Path(name))
        try:
            simulation.start()
            simulation.follow(options.most_seconds)
            found = report(simulation, simulation.results())
        except (SystemExit, subprocess.TimeoutExpired):
            for log in sorted(simulation.run.logs.iterdir()):
                print(f"--- {log.name}\n{log.read_text()[-600:]}", file=sys.stderr)
            raise
        finally:
            simulation.end()
    print(json.dumps(found, indent=1)) if options.json else show(found)
    is_exact = not found["accounts"] and found["requests"] == found["records"]
    return int(ExitCode.OK if is_exact else ExitCode.ERROR)


if __name__ == "__main__":
    sys.exit(main())
