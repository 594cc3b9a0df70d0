"""Hardware and software of client and target, for `provenance.json`.

A fact that cannot be read is `unknown`, so two files have the same keys, and a missing fact never
counts as equal.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec
import numpy as np

from aiperf_svc.config.secret_names import is_secret_name
from aiperf_svc.core.telemetry.log import SourceLog, within
from aiperf_svc.core.telemetry.series import Gpu, gpus
from aiperf_svc.core.telemetry.server_facts import HIDDEN, engine_of, information_facts
from aiperf_svc.core.verdict.health_log import Health

NAME = "provenance.json"
UNKNOWN = "unknown"
TARGET_FACTS = (
    "engine", "engine_version", "image", "image_digest", "arguments", "gpus", "gpu_model", "driver",
    "cuda", "power_limit_w", "sm_clock_mhz", "max_sm_clock_mhz", "node", "started", "node_type",
    "kernel", "os", "container_runtime",
)  # fmt: skip
"""Facts about the target in every file, besides the settings that its servers report."""
CLIENT_FACTS = (
    "aiperf_svc", "commit", "python", "kernel", "os", "cpu", "cores", "memory_gib", "cpu_governor",
    "smt", "numa_nodes", "numa_balancing", "image", "image_digest", "node_type",
    "container_runtime",
)  # fmt: skip
"""Facts about the client in every file."""
MEASURED = frozenset(
    ("sm_clock_mhz", "stolen_share", "throttled_share", "started", "image_replaces")
)
"""Facts that are not compared, because they differ from run to run: the median clock under load,
the largest shares of CPU time that a service lost to the machine's host and to its quota, and the
start time of the target's container. The stack file's image that AIPERF_IMAGE replaced did not
run."""
_QUOTED = r"""\\"[^"]*"|"(?:\\.|[^"\\])*"|'[^']*'"""
_ASSIGNMENT = re.compile(
    r"(?:(?P<flag>--?[a-zA-Z][\w-]*)(?:=|(?:\s|\\\n)+(?![-\s]|\\\n))|\b(?P<name>[a-zA-Z_]\w*)=)"
    rf"""(?P<value>(?:{_QUOTED}|[^\s;&|"'])+)"""
    rf"""|"(?P<key>[\w-]+)\\?"\s*:\s*(?P<member>{_QUOTED}|[^\s,{{}}\[\]"']+)"""
)
"""A flag or a variable with its value in a shell script, or a member of JSON."""
_DRIVER, _CUDA = "DCGM_FI_DRIVER_VERSION", "DCGM_FI_CUDA_DRIVER_VERSION"


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of both sides, by name. Several values of replicas or nodes are joined."""

    client: dict[str, str]
    target: dict[str, str]

    def with_facts(
        self, *, client: dict[str, str], target: dict[str, str], fallback: dict[str, str]
    ) -> "Provenance":
        """Return both sides with facts from another source, which take precedence. Facts of
        `fallback` only replace unknown facts of the target."""
        missing = {k: v for k, v in fallback.items() if self.target.get(k, UNKNOWN) == UNKNOWN}
        return Provenance(client=self.client | client, target=self.target | target | missing)

    def uptime_s(self, wall_ns: int) -> float | None:
        """Return the target's uptime at a time, to about a second; None if it is unknown, differs
        between replicas, or the target started later."""
        try:
            started = datetime.fromisoformat(self.target.get("started", UNKNOWN))
        except ValueError:
            return None
        uptime_s = wall_ns / 1e9 - started.timestamp()
        return uptime_s if uptime_s >= 0 else None

    @property
    def compared(self) -> dict[str, str]:
        """The facts that two comparable runs should share, by dotted name."""
        sides = {"client": self.client, "target": self.target}
        return {
            f"{side}.{name}": value
            for side, facts in sides.items()
            for name, value in facts.items()
            if name not in MEASURED
        }


def provenance_of(
    host: Mapping[str, str],
    health: Iterable[Health],
    logs: Iterable[SourceLog],
    *,
    begin_ns: int,
    end_ns: int,
) -> Provenance:
    """Return the facts known without a cluster: the client's machine, and the pages of servers and
    GPUs. `logs` are the used sources."""
    known, services = list(logs), list(health)
    lost = {
        "stolen_share": max((each.stolen_share for each in services), default=0.0),
        "throttled_share": max((each.throttled_share for each in services), default=0.0),
    }
    client = dict.fromkeys(CLIENT_FACTS, UNKNOWN) | dict(host)
    client |= {name: f"{share:.4f}" for name, share in lost.items()}
    target = dict.fromkeys(TARGET_FACTS, UNKNOWN)
    stated: dict[str, set[str]] = {}
    for log in known:
        engine = engine_of(log)
        own = {"engine": engine.name} if engine is not None else {}
        for name, value in (own | log.facts | information_facts(log)).items():
            stated.setdefault(name, set()).add(value)
    found = {name: joined(values) for name, values in stated.items()}
    return Provenance(client=client, target=target | found | _gpu_facts(known, begin_ns, end_ns))


def _gpu_facts(logs: list[SourceLog], begin_ns: int, end_ns: int) -> dict[str, str]:
    all_gpus = list(gpus(logs))
    if not all_gpus:
        return {}
    found = {
        "gpus": {str(len(all_gpus))},
        "gpu_model": {gpu.labels.get(gpu.exporter.model, "") for gpu in all_gpus},
        "driver": {gpu.labels.get(_DRIVER, "") for gpu in all_gpus},
        "cuda": {_cuda_version(gpu.labels.get(_CUDA, "")) for gpu in all_gpus},
        "power_limit_w": {_last(gpu, "gpu_power_limit") for gpu in all_gpus},
        "max_sm_clock_mhz": {_last(gpu, "max_sm_clock_frequency") for gpu in all_gpus},
    }
    clocks = [
        within(gpu.log.curve(*gpu.fields["sm_clock_frequency"][1]), begin_ns, end_ns)
        for gpu in all_gpus
        if "sm_clock_frequency" in gpu.fields
    ]
    values = np.concatenate(clocks) if clocks else np.empty(0)
    values = values[~np.isnan(values)]
    if len(values):
        found["sm_clock_mhz"] = {f"{np.median(values):.0f}"}
    return {name: text for name, values in found.items() if (text := joined(values))}


def _last(gpu: Gpu, name: str) -> str:
    if name not in gpu.fields:
        return ""
    field, numbers = gpu.fields[name]
    values = gpu.log.curve(*numbers).values
    known = values[~np.isnan(values)]
    return f"{known[-1] * field.scale:.0f}" if len(known) else ""


def _cuda_version(number: str) -> str:
    """Return `13.0` for NVML's 13000."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdecimal() else number


def joined(values: Iterable[str]) -> str:
    """Return the distinct values as one text; empty without any."""
    return "; ".join(sorted(set(values) - {""}))


def shown_arguments(arguments: Sequence[str]) -> str:
    """Return a command line without the values of secret flags, variables and JSON members, also
    inside a shell script."""
    shown, hides_next = [], False
    for argument in arguments:
        flag, separator, value = argument.partition("=")
        is_secret = flag.startswith("-") and is_secret_name(flag.lstrip("-"))
        if hides_next and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif is_secret and separator and value:
            shown.append(f"{flag}={HIDDEN}")
        else:
            shown.append(shlex.quote(_ASSIGNMENT.sub(_without_secret, argument)))
        hides_next = is_secret and not separator
    return " ".join(shown)


def _without_secret(found: re.Match[str]) -> str:
    name = found["flag"] or found["name"] or found["key"]
    value = found["value"] or found["member"]
    # The value of another flag may be a script, JSON, or the next assignment.
    is_secret = is_secret_name(name.lstrip("-"))
    shown = HIDDEN if is_secret else _ASSIGNMENT.sub(_without_secret, value)
    return found[0].removesuffix(value) + shown
