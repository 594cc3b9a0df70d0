"""What the interfaces of a rank carry while a step runs, for people who look on."""

import time

from aiperf_svc.adapters.ranks.counters import interface_bytes
from aiperf_svc.domain.number_text import readable_unit

_SHORTEST_S = 0.25
"""Between two looks: bytes come in bursts."""


class Traffic:
    """Rates between one look and the next."""

    def __init__(self) -> None:
        self._text = ""
        self._mono_ns, self._before = time.monotonic_ns(), interface_bytes()

    def text(self) -> str:
        """The rates since the last look; before a second one has come, nothing."""
        now = time.monotonic_ns()
        elapsed_s = (now - self._mono_ns) / 1e9
        if elapsed_s >= _SHORTEST_S:
            after = interface_bytes()
            rates = (8 * (a - b) / elapsed_s for a, b in zip(after, self._before, strict=True))
            self._text = traffic_text(*rates)
            self._mono_ns, self._before = now, after
        return self._text


def traffic_text(received: float, sent: float, loopback: float) -> str:
    """Rates in bit/s as people read them: of the loopback if it carries most, as in a local run."""
    highest = max(received, sent, loopback)
    divisor, unit = readable_unit("bit/s", highest)
    if loopback == highest:
        return f"interface lo carries {loopback / divisor:.3g} {unit}"
    return f"interfaces send {sent / divisor:.3g} and receive {received / divisor:.3g} {unit}"
