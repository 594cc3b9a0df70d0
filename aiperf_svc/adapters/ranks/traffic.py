"""Network traffic of a rank during a step, for the live display."""

import time

from aiperf_svc.adapters.ranks.counters import interface_bytes
from aiperf_svc.domain.number_text import readable_unit

_MIN_S = 0.25
"""Minimum interval between readings: bytes arrive in bursts."""


class Traffic:
    """Rates between successive readings."""

    def __init__(self) -> None:
        self._text = ""
        self._mono_ns, self._before = time.monotonic_ns(), interface_bytes()

    def text(self) -> str:
        """Describe the rates since the last reading; empty before the second one."""
        now = time.monotonic_ns()
        elapsed_s = (now - self._mono_ns) / 1e9
        if elapsed_s >= _MIN_S:
            after = interface_bytes()
            rates = (8 * (a - b) / elapsed_s for a, b in zip(after, self._before, strict=True))
            self._text = traffic_text(*rates)
            self._mono_ns, self._before = now, after
        return self._text


def traffic_text(received: float, sent: float, loopback: float) -> str:
    """Format rates in bit/s; of the loopback if it carries most, as in a local run."""
    highest = max(received, sent, loopback)
    divisor, unit = readable_unit("bit/s", highest)
    if loopback == highest:
        return f"interface lo carries {loopback / divisor:.3g} {unit}"
    return f"interfaces send {sent / divisor:.3g} and receive {received / divisor:.3g} {unit}"
