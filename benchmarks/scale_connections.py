"""Measures how many streaming connections one machine holds, including its server, and their cost.

    python -m benchmarks.scale_connections --connections 100000 --duration 300s
    python -m benchmarks.scale_connections --connections 1000000 --lean --duration 590s \\
        --ramp 540s --ttft uniform:480s,570s --itl 200s --tokens 2 --grace 5s

Starts the mock server with slow streams, and runs `aiperf-svc run STACK --local` against it. STACK
is stacks/Pulumi.bench-100k.yaml with this concurrency and these times. The server reports how many
connections it held. Both run in their own network namespace, so that wider kernel limits end with
the run; `--shared-network` keeps the machine's. When the machine's memory runs out, the run is
stopped early and the report says so.

Memory per connection is the increase from just before the first connection until all are held,
divided by their number. `at rest` is the processes' memory before that.
"""

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import yaml

from aiperf_svc.config.units import parse_duration_ns
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from benchmarks import machine_use

STACK = Path(__file__).parents[1] / "stacks/Pulumi.bench-100k.yaml"
OWN_LIMITS = {
    "net/ipv4/ip_local_port_range": "1024 65535",
    "net/core/somaxconn": "65535",
    "net/ipv4/tcp_max_syn_backlog": "65535",
}
"""Kernel settings of the benchmark's own network namespace."""
SERVER_CONNECTIONS_PER_PROCESS = 16_500
"""SO_REUSEPORT distributes unevenly by hash, so this stays well below a limit of 20,000 files."""
MIN_FREE_BYTES = 2_500 * 2**20
"""Available memory at which the run is stopped, and at half of which it is killed, because the
machine has other work."""
SAMPLE_S, GUARD_S, MIN_MEMORY_SAMPLE_S = 1.0, 0.5, 5.0
CONNECTIONS_PER_SAMPLE_S = 40_000
"""Summing a process's memory walks through all of it, so the interval grows with connections."""
HELD_SHARE = 0.999
MIB = 2**20


class Sample(NamedTuple):
    """The machine at one time. Bytes, except CPU seconds, connections and requests."""

    at_s: float
    in_flight: int
    connections: int
    client: int
    server: int
    kernel: int
    available: int
    client_cpu_s: float
    server_cpu_s: float
    processes: int


class Watch:
    """Samples a run until it ends."""

    def __init__(
        self, server: RunningMockServer, client: "subprocess.Popen[bytes]", connections: int
    ) -> None:
        self._server, self._client = server, client
        self._every_s = max(MIN_MEMORY_SAMPLE_S, connections / CONNECTIONS_PER_SAMPLE_S)
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        """Samples that include memory."""
        self.held: list[tuple[float, int]] = []
        """(seconds since the start, requests in flight on the server)."""
        self.stopped_by = ""

    def follow(self) -> None:
        """Sample until the client has ended. Stops it when the machine's memory runs out."""
        Thread(target=self._guard, daemon=True).start()
        memory_at = 0.0
        while self._client.poll() is None:
            at = time.monotonic() - self._began
            truth = self._server.truth()
            self.held.append((at, truth["in_flight"]))
            if at >= memory_at:
                memory_at = at + self._every_s
                self.samples.append(self._sample(at, truth))
            time.sleep(SAMPLE_S)

    def _guard(self) -> None:
        while self._client.poll() is None:
            free = machine_use.memory()["MemAvailable"]
            if free < MIN_FREE_BYTES and not self.stopped_by:
                self.stopped_by = f"memory: {free / MIB:,.0f} MiB were left"
                self._client.send_signal(signal.SIGINT)
            if free < MIN_FREE_BYTES / 2:
                for pid in reversed(machine_use.family(self._client.pid)):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(GUARD_S)

    def _sample(self, at: float, truth: dict[str, Any]) -> Sample:
        client = machine_use.family(self._client.pid)
        server = machine_use.family(self._server.pid)
        return Sample(
            at_s=at,
            in_flight=truth["in_flight"],
            connections=truth["open_connections"],
            client=machine_use.pss_bytes(client),
            server=machine_use.pss_bytes(server),
            kernel=machine_use.kernel_bytes(),
            available=machine_use.memory()["MemAvailable"],
            client_cpu_s=machine_use.cpu_s(client),
            server_cpu_s=machine_use.cpu_s(server),
            processes=len(client) + len(server),
        )


def stack_file(folder: Path, options: argparse.Namespace) -> Path:
    """Write the stack file with this benchmark's size."""
    content = yaml.safe_load(STACK.read_text())
    stack = content["config"]["aiperf:benchmark"]
    # Its objectives are for a model, but this server sends a token every few seconds.
    del stack["slo"]
    stack["load"] |= {
        "concurrency": options.connections,
        "duration": options.duration,
        "ramp": options.ramp,
        "grace_period": options.grace,
        "warmup": {"requests": max(1, options.connections // 10), "grace_period": "2m"},
    }
    stack["endpoint"]["connect_timeout"] = "2m"
    if options.lean:
        # Connections are measured, so little else should take memory.
        del stack["load"]["warmup"]
        stack["dataset"] = {"entries": 1_000, "input_tokens": {"mean": 32}}
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        fewest = math.ceil(options.connections / (files - 1_000))
        stack["workers"] = {"max": fewest, "record_processors": math.ceil(fewest / 16)}
        stack["artifacts"] = {"jsonl_limit": 0}
    path = folder / "scale.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def server_config(options: argparse.Namespace) -> MockServerConfig:
    """Return a server of slow streams with as many processes as its files need."""
    processes = math.ceil(options.connections / SERVER_CONNECTIONS_PER_PROCESS)
    return MockServerConfig(
        processes=processes,
        ttft=options.ttft,
        itl=options.itl,
        tokens=options.tokens,
        force_tokens=True,
        usage="always",
    )


def report(
    options: argparse.Namespace, watch: Watch, truth: dict[str, Any], outcome: dict[str, Any]
) -> dict[str, Any]:
    """Return all measurements."""
    samples = watch.samples
    # The query itself is a connection.
    before = [s for s in samples if s.connections <= 1 and s.at_s < _first_held(watch)]
    base = before[-1] if before else samples[0]
    peak = max(samples, key=lambda s: s.in_flight)
    full = [at for at, count in watch.held if count >= HELD_SHARE * options.connections]
    held = max(1, peak.in_flight)
    last = max(samples, key=lambda s: s.client_cpu_s)
    own = (outcome.get("results") or {}).get("aiperf_svc") or {}
    return {
        "connections_asked": options.connections,
        "peak_in_flight_by_server": max(count for _, count in watch.held),
        "peak_connections_by_server": max(s.connections for s in samples),
        "held_for_s": round(full[-1] - full[0], 1) if full else 0.0,
        "server": {k: v for k, v in truth.items() if isinstance(v, int)},
        "stopped_by": watch.stopped_by,
        "exit_code": outcome.get("exit_code"),
        "verdict": own.get("verdict"),
        "reasons": own.get("reasons"),
        "bytes_per_connection": {
            "client": round((peak.client - base.client) / held),
            "server": round((peak.server - base.server) / held),
            "kernel": round((peak.kernel - base.kernel) / held),
            "whole_machine": round((base.available - peak.available) / held),
        },
        "at_rest_mib": {
            "client": round(base.client / MIB),
            "server": round(base.server / MIB),
        },
        "client_bytes_per_connection_with_processes": round(peak.client / held),
        "processes": peak.processes,
        "cpu_s": {
            "client": round(last.client_cpu_s - base.client_cpu_s, 1),
            "server": round(last.server_cpu_s - base.server_cpu_s, 1),
            "during_s": round(last.at_s - base.at_s, 1),
        },
        "limits": machine_use.limits(),
        "timeline": [[round(at, 1), count] for at, count in watch.held],
    }


def _first_held(watch: Watch) -> float:
    return next((at for at, count in watch.held if count), 0.0)


def show(found: dict[str, Any]) -> None:
    """Print the measurements as text."""
    each, rest = found["bytes_per_connection"], found["at_rest_mib"]
    cpu, server = found["cpu_s"], found["server"]
    print(
        f"asked for           {found['connections_asked']:>12,} streaming connections\n"
        f"server's account    {found['peak_in_flight_by_server']:>12,} at once, all of them for "
        f"{found['held_for_s']:g} s; {server['requests']:,} requests, "
        f"{server['completed']:,} completed, {server['disconnected']:,} left by the client\n"
        f"verdict             {found['verdict']!s:>12}   exit code {found['exit_code']}"
    )
    for reason in found["reasons"] or ():
        print(f"                    {reason}")
    print(
        f"memory a connection {each['client']:>12,} B client, {each['server']:,} B server, "
        f"{each['kernel']:,} B kernel (both ends), {each['whole_machine']:,} B by MemAvailable\n"
        f"processes           {found['processes']:>12,}   at rest {rest['client']:,} MiB client, "
        f"{rest['server']:,} MiB server\n"
        f"CPU                 {cpu['client']:>12,} s client, {cpu['server']:,} s server, "
        f"in {cpu['during_s']:g} s"
    )
    if found["stopped_by"]:
        print(f"stopped by          {found['stopped_by']}")


def main() -> int:
    """Run and print the results. Return 0 if all connections were held and the run is valid."""
    options = _arguments()
    machine_use.end_orderly()
    if not options.shared_network:
        machine_use.enter_own_network(OWN_LIMITS)
    with tempfile.TemporaryDirectory() as name, running(server_config(options)) as server:
        folder = Path(name)
        outcome_path, log_path = folder / "outcome.json", folder / "log"
        command = [*OWN_PROGRAM, "run", stack_file(folder, options)]
        flags = ["--local", "--url", server.url, "--json", "--ui", options.ui]
        with outcome_path.open("wb") as outcome_file, log_path.open("wb") as log:
            client = subprocess.Popen(
                [*command, *flags, "--artifact-dir", options.artifacts or folder / "artifacts"],
                stdout=outcome_file,
                stderr=None if options.ui != "none" else log,
                env=os.environ | {"PYTHONPATH": str(STACK.parents[1])},
            )
            watch = Watch(server, client, options.connections)
            try:
                watch.follow()
            finally:
                if client.poll() is None:
                    client.send_signal(signal.SIGINT)
                    client.wait()
        text = outcome_path.read_text() or ("{}" if watch.stopped_by else "")
        if not text:
            print(log_path.read_text(), file=sys.stderr)
            return 1
        found = report(options, watch, server.truth(), json.loads(text))
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    is_held = found["peak_in_flight_by_server"] >= HELD_SHARE * options.connections
    return 0 if is_held and found["verdict"] == "valid" else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--duration", default="60s", help="of the load, its ramp included")
    parser.add_argument("--ramp", default="", help="default: a fifth of the duration, at most 1m")
    parser.add_argument("--grace", default="", help="default: what one response takes, and 10 s")
    parser.add_argument("--ttft", default="uniform:1s,3s", help="of the server")
    parser.add_argument("--itl", default="uniform:4s,6s", help="of the server")
    parser.add_argument("--tokens", type=int, default=6, help="of each response")
    parser.add_argument("--lean", action="store_true", help="small prompts, fewest processes")
    parser.add_argument("--shared-network", action="store_true", help="no namespace of its own")
    parser.add_argument("--artifacts", default="", help="folder that keeps the run's artifacts")
    parser.add_argument("--ui", default="none", help="the product's own progress: plain, rich")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    duration_s = parse_duration_ns(options.duration) / 1e9
    options.ramp = options.ramp or f"{min(60.0, duration_s / 5):g}s"
    longest_s = 10.0 * options.tokens + 30.0
    options.grace = options.grace or f"{longest_s:g}s"
    return options


if __name__ == "__main__":
    sys.exit(main())
