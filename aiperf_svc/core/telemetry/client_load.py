"""The use of CPU by this program's own services, as the status of a run reports it."""

import msgspec


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The busiest service of each kind."""

    cpu_cores: dict[str, float]
    """Cores by kind of service."""
    loop_lag_s: dict[str, float]
    """Largest delay of an event loop by kind of service."""
    cpu_lost: dict[str, float]
    """Largest share of time in which a node's CPU ran something else, by cause."""
