"""The runs of fio that a spec asks for: its own one, or those of a suite."""

from typing import Literal

import msgspec

from aiperf_svc.workloads.fio.spec import FioSpec, Pattern

Direction = Literal["read", "write"]
Shown = Literal["iops", "bandwidth", "latency"]
_KI = 2**10
_MI = 2**20


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run."""

    name: str
    """Name of its step."""
    prefix: str = ""
    """Prefix of its metrics, which differ between the runs of a suite."""
    shows: tuple[Shown, ...]
    """The metrics that the terminal's table has, the most important first."""
    rw: Pattern
    bs: int
    iodepth: int
    num_jobs: int = 1
    rwmixread: int = 50

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What it does."""
        if self.rw in ("rw", "readwrite", "randrw"):
            return ("read", "write")
        return ("read",) if "read" in self.rw else ("write",)

    def latency_tag(self, way: Direction) -> str:
        """Tag of the average latency in a direction. The name of a suite's run with one
        direction says which."""
        return (
            f"{self.prefix}latency"
            if self.prefix and not self.is_mixed
            else (f"{self.prefix}{way}_latency")
        )

    @property
    def is_mixed(self) -> bool:
        """Whether it both reads and writes."""
        return len(self.directions) == 2

    @property
    def is_random(self) -> bool:
        """Whether it goes through its files at random."""
        return self.rw.startswith("rand")


def _of_suite(
    name: str,
    shows: Shown,
    rw: Pattern,
    bs: int,
    iodepth: int,
    num_jobs: int = 1,
    rwmixread: int = 50,
) -> Run:
    return Run(
        name=name.replace("_", " "),
        prefix=f"{name}_",
        shows=(shows,),
        rw=rw,
        bs=bs,
        iodepth=iodepth,
        num_jobs=num_jobs,
        rwmixread=rwmixread,
    )


# A queue of 64 takes most volumes to their limits; one of 4 shows latency without much queueing.
# The parallel reads show what one stream cannot use of a volume that is spread over disks.
VOLUME = (
    _of_suite("random_read", "iops", "randread", 4 * _KI, 64),
    _of_suite("random_write", "iops", "randwrite", 4 * _KI, 64),
    _of_suite("sequential_read", "bandwidth", "read", 128 * _KI, 64),
    _of_suite("sequential_write", "bandwidth", "write", 128 * _KI, 64),
    _of_suite("short_queue_read", "latency", "randread", 4 * _KI, 4),
    _of_suite("short_queue_write", "latency", "randwrite", 4 * _KI, 4),
    _of_suite("parallel_read", "bandwidth", "read", _MI, 16, num_jobs=4),
    _of_suite("mixed", "iops", "randrw", 4 * _KI, 64, rwmixread=75),
)
"""Runs of `suite: volume`, after dbench's."""


def runs_of(spec: FioSpec) -> tuple[Run, ...]:
    """The measured runs, in their order."""
    if spec.suite is not None:
        return VOLUME
    return (
        Run(
            name=spec.rw,
            shows=("iops", "bandwidth", "latency"),
            rw=spec.rw,
            bs=spec.bs,
            iodepth=spec.iodepth,
            num_jobs=spec.num_jobs,
            rwmixread=spec.rwmixread,
        ),
    )
