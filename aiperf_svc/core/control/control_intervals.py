"""Computes how often services send, depending on their number. Pure rules that prevent the
singletons' work from growing with the square of the run's size.

A singleton's load is the number of messages per second times the cost of one. With few senders
everything is sent as soon as it is useful. With thousands, the interval grows with their number, so
one process receives no more messages than one interpreter can handle (about 20,000 small ones per
second).

On one machine workers share cores, and even idle wake-ups add up: each costs some 60 µs. So workers
wake less often the more of them share a core.
"""

POLL_INTERVAL_NS = 500_000
"""Minimum time between two polls: two thousand wake-ups per second take 5 to 9% of a core."""
HOUSEKEEPING_S = 0.05
MAX_WORKERS_PER_CORE = 8.0
"""Maximum workers per core that lengthen intervals. Beyond that, three returns would take as long
as the credits held ahead last."""
MIN_RETURN_S = 0.02
RETURNS_PER_S = 5_000
"""Maximum returns per second of all workers together: a fifth of the timing manager's core."""
MIN_LOOKAHEAD_S = 0.5
LOOKAHEAD_RETURNS = 3
"""Number of return intervals covered by the credits that a worker holds ahead: one passes until it
reports, and it gets more when it holds half of its target."""
MIN_BATCH_S = 0.1
"""Minimum time between two batches of records. Rows and lines for ten requests cost as much as for
a hundred, and records are not urgent."""
MIN_PROBE_S = 1.0
PROBES_PER_S = 500
"""Maximum clock probes per second, each served in about 0.15 ms. Between two probes a worker's
clock drifts by about 10 us per second."""
BATCHES_PER_S = 2_500
"""Maximum record batches per second of all workers together. Each costs the records manager about
0.1 ms."""
MIN_ACKNOWLEDGE_S = 0.5
ACKNOWLEDGED_PER_S = 1_000
"""Maximum workers named in acknowledgements per second. Every worker receives them, so the bus
carries this number times the workers times about 25 bytes: 50 MB/s for 2,000 workers."""
MIN_REGISTERING_S = 0.02
REGISTERING_S_PER_MEMBER = 0.0004
"""Seconds between the first two heartbeats of a service, per member of the run. The bus loses the
first heartbeat while its connections are made, which takes milliseconds, and the run cannot begin
without one."""
MAX_REGISTERING_S = 0.2
ROSTER_S_PER_MEMBER = 0.0004
"""Seconds between two rosters, per member. A roster of 2,500 members is 250 KB and takes
milliseconds to read, so it is sent at most once a second."""
MIN_REPUBLISH_S = 1.0
REPUBLISH_S_PER_MEMBER = 0.004
"""Seconds until the roster is published again, per member. Confirmations come with heartbeats, and
if thousands start at once the bus delays both: with 2,500 members, ten seconds pass before the
roster is repeated."""
GRANT_S_PER_WORKER = 10e-6
"""Seconds between two refills, per worker: about twice the time of a refill."""


def poll_interval_ns(workers_per_core: float) -> int:
    """Return the maximum time between two polls of a worker's sockets. A later poll makes a
    timestamp less certain; the verdict judges whether that matters."""
    return round(POLL_INTERVAL_NS * workers_per_core)


def housekeeping_interval_s(workers_per_core: float) -> float:
    """Return the time between two checks of a worker's clocks and partly filled batches."""
    return HOUSEKEEPING_S * min(workers_per_core, MAX_WORKERS_PER_CORE)


def return_interval_s(workers: int, workers_per_core: float = 1.0) -> float:
    """Return the time between two reports of a worker's credits. The ledger's look-ahead is longer,
    so no user waits for a credit."""
    min_s = MIN_RETURN_S * min(workers_per_core, MAX_WORKERS_PER_CORE)
    return max(min_s, workers / RETURNS_PER_S)


def probe_interval_s(workers: int) -> float:
    """Return the time between two comparisons of a worker's clock with the timing manager's."""
    return max(MIN_PROBE_S, workers / PROBES_PER_S)


def lookahead_s(workers: int) -> float:
    """Return the time that a worker's credits cover beyond those of its users."""
    return max(MIN_LOOKAHEAD_S, LOOKAHEAD_RETURNS * return_interval_s(workers))


def batch_interval_s(workers: int) -> float:
    """Return the time over which a record processor collects one worker's finished records into a
    message."""
    return max(MIN_BATCH_S, workers / BATCHES_PER_S)


def acknowledge_interval_s(workers: int) -> float:
    """Return the time between two acknowledgements of the records of all workers."""
    return max(MIN_ACKNOWLEDGE_S, workers / ACKNOWLEDGED_PER_S)


def registering_interval_s(members: int) -> float:
    """Return the time between the first two heartbeats of a service. It grows between later ones,
    until the roster contains the service."""
    return min(max(MIN_REGISTERING_S, members * REGISTERING_S_PER_MEMBER), MAX_REGISTERING_S)


def roster_interval_s(members: int) -> float:
    """Return the shortest time between two publications of the roster."""
    return members * ROSTER_S_PER_MEMBER


def republish_interval_s(members: int) -> float:
    """Return the time after which a roster is republished if some member has not confirmed
    it."""
    return max(MIN_REPUBLISH_S, members * REPUBLISH_S_PER_MEMBER)


def grant_interval_s(workers: int) -> float:
    """Return the shortest time between two checks of the accounts of all workers."""
    return workers * GRANT_S_PER_WORKER
