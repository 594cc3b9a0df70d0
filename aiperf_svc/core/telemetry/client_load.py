"""How busy the own services are, as the status of a run says it."""

import msgspec


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the busiest of the own services of each kind does now."""

    cpu_cores: dict[str, float]
    """Cores by kind of service."""
    loop_lag_s: dict[str, float]
    """Largest delay of an event loop by kind of service."""
    cpu_lost: dict[str, float]
    """Largest share of the time in which a node's CPU was with others, by cause."""
