"""The keys of `workload: {kind: fio}`."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.units import DurationNs, PositiveDurationNs, SizeBytes
from aiperf_svc.config.workload import WorkloadSpec

Pattern = Literal["read", "write", "randread", "randwrite", "rw", "readwrite", "randrw"]
_SUITE_KEYS = (
    "rw",
    "bs",
    "iodepth",
    "num_jobs",
    "nrfiles",
    "rwmixread",
    "percentage_random",
    "thread",
)
"""Keys that `suite` sets for each of its runs."""
_SYNCHRONOUS = ("psync", "sync")
_SECTOR = 512
_DECIMAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMG])B?\s*")
_SUITE_SMALLEST = 64 * 2**20
"""Minimum size of the suite's file. With less, its four jobs of 1 MiB blocks lack blocks."""


class FioSpec(WorkloadSpec):
    """fio on the volume of each worker, at the same moment. The volume is
    `deployment.ranks.volume`."""

    kind: Literal["fio"] = "fio"
    suite: Literal["volume"] | None = None
    """`volume` profiles a volume in several runs: random and sequential reads and writes, their
    latency, parallel reads, and reads mixed with writes. It sets `rw`, `bs`, `iodepth` and similar
    keys."""
    rw: Pattern = "read"
    bs: Annotated[SizeBytes, Field(gt=0, le=2**30)] = 4 * 2**20
    """Block size: `64Ki`, or a number of bytes. `64k` is refused, because fio reads it as 64 KiB
    and this config as 64,000 bytes."""
    iodepth: Annotated[int, Field(gt=0, le=65_536)] = 1
    """I/O operations that each job keeps in flight."""
    ioengine: Literal["libaio", "io_uring", "posixaio", "psync", "sync"] = "libaio"
    direct: bool = True
    """Bypass the page cache."""
    nrfiles: Annotated[int, Field(gt=0, le=100_000)] = 1
    """Files per job."""
    rwmixread: Annotated[int, Field(ge=1, le=99)] = 50
    """Percentage of reads if `rw` mixes reads and writes."""
    percentage_random: Annotated[int, Field(ge=0, le=100)] = 100
    """Percentage of accesses that are random if `rw` is a random pattern."""
    runtime: Annotated[PositiveDurationNs, Field(ge=SECOND_NS)] | None = None
    """Length of the measurement. Default: 30s, or 15s for each run of a suite."""
    ramp: DurationNs = 2 * SECOND_NS
    """Time before the measurement, which is not counted."""
    num_jobs: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Jobs (processes) of each worker, each with its own files."""
    size: Annotated[SizeBytes, Field(gt=0)] = 10 * 2**30
    """Total size of the files of one job, or of the single file of a suite."""
    thread: bool = False
    """Run the jobs as threads instead of processes."""
    workers: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Number of ranks, each with its own volume unless they share one."""

    @model_validator(mode="before")
    @classmethod
    def _has_binary_size(cls, value: Any) -> Any:
        """Refuse `bs: 64k`: fio reads it as 65,536 bytes, and a config as 64,000."""
        size = value.get("bs") if isinstance(value, dict) else None
        found = _DECIMAL.fullmatch(size) if isinstance(size, str) else None
        if found is not None:
            raise ValueError(
                f"{{bs}} {size} counts in units of 1000 bytes here, and of 1024 bytes in fio: "
                f"write {found[1]}{found[2].upper()}i, or the number of bytes"
            )
        return value

    @property
    def measured_ns(self) -> int:
        """Return the measured time of one run."""
        return self.runtime or (15 if self.suite else 30) * SECOND_NS

    @property
    def worker_bytes(self) -> int:
        """Return the bytes that one worker keeps on its volume."""
        return self.size * (1 if self.suite else self.num_jobs)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problems = self._problems_of_suite() if self.suite else self._problems_of_run()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems_of_suite(self) -> list[str]:
        keys = filter(self._is_set, _SUITE_KEYS)
        problems = [f"{{suite}} sets {{{key}}}; leave it out" for key in keys]
        if self.ioengine in _SYNCHRONOUS:
            problems.append(f"{{suite}} needs an asynchronous {{ioengine}}, not {self.ioengine}")
        if self.size < _SUITE_SMALLEST:
            problems.append("{suite} needs a {size} of at least 64Mi")
        return problems

    def _problems_of_run(self) -> list[str]:
        problems = []
        if self.iodepth > 1 and self.ioengine in _SYNCHRONOUS:
            problems.append(
                f"{{ioengine}} {self.ioengine} has one read or write in flight: {{iodepth}} "
                f"{self.iodepth} would have no effect; use libaio, or {{num_jobs}}"
            )
        if self.direct and self.bs % _SECTOR:
            problems.append(
                f"{{bs}} {self.bs} is not a multiple of {_SECTOR}, which {{direct}} needs"
            )
        if self.size < self.bs * self.nrfiles:
            problems.append("{size} is smaller than one {bs} for each of {nrfiles}")
        return problems
