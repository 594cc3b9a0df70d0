"""Runs that test the verdict: honest loads, loads whose client is starved of something, and loads
on a server that fails."""

import random
from dataclasses import dataclass
from typing import Any

HONEST = ("honest-open", "honest-closed")
STARVED = ("quota", "neighbour", "fds", "ports", "paused", "clock", "processor", "control")
NASTY = ("refusing", "hanging", "dropping", "dying")
"""Kinds of failing servers: `nasty_servers`."""
DURATION_S = 2.5


@dataclass(frozen=True)
class Trial:
    """One run: a load, a pace of the server, and what the client is starved of."""

    number: int
    kind: str
    rate: int = 0
    pattern: str = "constant"
    users: int = 0
    tokens: int = 8
    ttft_ms: int = 20
    itl_ms: int = 5
    severity: float = 0.0
    """Severity of the starvation or of the failures, in a unit of its kind: `trial`."""
    duration_s: float = DURATION_S

    @property
    def flags(self) -> list[str]:
        load = ["--concurrency", str(self.users)]
        if self.rate:
            load = ["--request-rate", str(self.rate), "--arrival-pattern", self.pattern]
        run = ["--benchmark-duration", f"{self.duration_s:g}s", "--grace-period", "5s"]
        return [*load, *run, "--isl", "50", "--random-seed", str(self.number)]


def trial(number: int, seed: int) -> Trial:
    """Return the trial of this number. Every other one is honest; the rest cycle through the
    kinds."""
    rng = random.Random(f"{seed}/{number}")
    if number % 2 == 0:
        return _honest(number, rng)
    kinds = (*STARVED, *NASTY)
    kind = kinds[number // 2 % len(kinds)]
    load: dict[str, Any] = {"rate": rng.randint(100, 400), "ttft_ms": rng.randint(10, 30)}
    if kind == "ports":
        load = {"rate": rng.randint(100, 250), "ttft_ms": rng.randint(300, 700)}
    elif kind == "fds":
        # A worker reserves 256 descriptors: `severity` leaves 276 to 376 connections.
        load = {"rate": rng.randint(250, 500), "ttft_ms": rng.randint(700, 1300)}
    elif rng.random() < 0.4:
        load = {"users": rng.randint(20, 80), "ttft_ms": rng.randint(20, 60)}
    severity = {
        "quota": rng.uniform(0.03, 0.4),
        "neighbour": rng.randint(2, 5),
        "fds": 512 + rng.randint(20, 120),
        "ports": rng.randint(40, 120),
        "paused": rng.uniform(0.05, 0.8),
        "clock": rng.choice((-1, 1)) * rng.uniform(2, 300),
        "processor": rng.uniform(0.2, 0.8),
        "control": rng.uniform(0.2, 1.2),
        "refusing": rng.choice((0.003, rng.uniform(0.01, 0.98))),
        "hanging": rng.choice((0.003, rng.uniform(0.01, 0.5))),
        "dropping": rng.choice((0.003, rng.uniform(0.01, 0.5))),
        "dying": rng.uniform(0.2, 2.4),
    }[kind]
    pattern = rng.choice(("constant", "poisson"))
    return Trial(number, kind, pattern=pattern, severity=round(severity, 3), **load)


def _honest(number: int, rng: random.Random) -> Trial:
    """Return a load well within the limits of two cores that is long enough for its p99."""
    if number % 4 == 0:
        return Trial(
            number,
            "honest-open",
            rate=rng.randint(50, 250),
            pattern=rng.choice(("constant", "poisson")),
            tokens=rng.choice((1, 5, 10, 20)),
            ttft_ms=rng.choice((10, 20, 40, 80)),
            itl_ms=rng.choice((2, 5, 10)),
        )
    return Trial(
        number,
        "honest-closed",
        users=rng.randint(8, 50),
        tokens=rng.randint(8, 20),
        ttft_ms=rng.randint(30, 80),
        itl_ms=rng.choice((5, 8)),
    )
