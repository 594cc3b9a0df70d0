"""Checks of a tool: did the ranks run as configured, together and undisturbed?"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from aiperf_svc.core.verdict.check_result import Reason, expect_none, graded, note
from aiperf_svc.core.verdict.health_log import stopped_share
from aiperf_svc.domain.number_text import significant
from aiperf_svc.protocol.messages.steps import RankWitness
from aiperf_svc.workloads.step_evidence import Attempt, StepEvidence, place_of, witnessed, worst

# A pair contains two limits: beyond the first the run is degraded, beyond the second invalid.
TOO_SHORT = (0.02, 0.10)
TOO_LONG = 0.10
LONGER_NS = 2_000_000_000
"""Time that a step may exceed its length: to connect, to exchange results, to exit."""
START_SKEW_NS = (5_000_000, 100_000_000)
START_SKEW_SHARE = 0.01
"""Share of the step from which a skew is invalid, if that is less than 100 ms."""
LATE_START_NS = 100_000_000
THROTTLED_SHARE = (0.01, 0.20)
"""Limits for the time in which the CPU quota throttled a rank. At 20% or more, the run measured the
quota."""
CPU_PRESSURE = 0.20
MEMORY_PRESSURE = 0.10
STOLEN_SHARE = 0.05
SPREAD = 0.05
"""Limit for the standard deviation over repetitions, as a share of the average."""
COURIER_SHARE = 0.02
MIN_LOAD_NS = 1_000_000_000
"""Shorter steps count as this long when their courier's load is judged, since starting a step
always takes the same few milliseconds."""


def step_length(e: StepEvidence) -> Reason | None:
    """Compare the length of each step with the configured length."""
    known = [a for a in e.counted if a.plan.step.expected_ns and a.length_ns]
    return worst([_length(attempt) for attempt in known]) if known else None


def _length(attempt: Attempt) -> Reason:
    expected_ns = attempt.plan.step.expected_ns
    shortest_ns, who = attempt.shortest
    short = 1 - shortest_ns / expected_ns
    long = (attempt.length_ns - expected_ns - LONGER_NS) / expected_ns
    # A rank that ends early counts, even if the others take longer.
    is_short = short > max(long, 0.0)
    length_ns = shortest_ns if is_short else attempt.length_ns
    where = who if is_short else ""
    return graded(
        "step-length",
        short if is_short else max(long, 0.0),
        TOO_SHORT if is_short else TOO_LONG,
        text=f"{attempt.name} took {significant(length_ns / 1e9, 3)} s{where}; expected "
        f"{expected_ns / 1e9:g} s",
        remedy="check the tool's output under raw/: did it end early, or wait for something?",
    )


def tool_versions(e: StepEvidence) -> Reason | None:
    """Compare the versions of the tool on all ranks."""
    found: dict[str, str] = {}
    for attempt in e.counted:
        if attempt.reading.tool:
            found.setdefault(attempt.reading.tool, attempt.name)
        for rank, tool in attempt.reading.tools.items():
            found.setdefault(tool, f"rank {rank}")
    if not found:
        return None
    names = ", ".join(f"{tool} ({where})" for tool, where in found.items())
    return graded(
        "tool-versions",
        float(len(found) - 1),
        0.0,
        unit="versions",
        text=f"the ranks ran different versions: {names}"
        if len(found) > 1
        else f"all ranks ran {names}",
        remedy="give all ranks the same image",
    )


def same_node(e: StepEvidence) -> Reason | None:
    """Check that the ranks of a step are on different nodes, if the config requires it."""
    several = [a for a in e.counted if len(a.witnesses) > 1]
    if not several:
        return None
    if e.is_local:
        return note(
            "same-node", "all ranks ran on this machine: no network between machines was measured"
        )
    if e.config.deployment.ranks.nodes != "apart":
        return None
    shared = {
        (first.rank, second.rank, first.node)
        for attempt in several
        for first, second in pairwise(sorted(attempt.witnesses, key=lambda w: (w.node, w.rank)))
        if first.node == second.node
    }
    first = min(shared, default=None)
    text = "each rank of a step had its own node"
    if first is not None:
        text = f"ranks {first[0]} and {first[1]} were on one node, {first[2]}"
    return expect_none(
        "same-node",
        len(shared),
        unit="pairs",
        text=f"{text}; deployment.ranks.nodes is apart",
        remedy="check how the scheduler placed the pods of the ranks",
    )


def start_skew(e: StepEvidence) -> Reason | None:
    """Compare the start times of the ranks with each other."""
    found = [_skew(a, a.skew_ns) for a in e.counted if a.skew_ns is not None]
    return worst(found) if found else None


def _skew(attempt: Attempt, skew_ns: int) -> Reason:
    uncertainty_ns = max(w.clock_uncertainty_ns for w in attempt.witnesses)
    first_ns = START_SKEW_NS[0] + uncertainty_ns
    share_ns = START_SKEW_SHARE * attempt.length_ns if attempt.length_ns else START_SKEW_NS[1]
    second_ns = max(first_ns, min(START_SKEW_NS[1], share_ns))
    clocks = f"; their clocks are known to {significant(uncertainty_ns / 1e6, 3)} ms"
    return graded(
        "start-skew",
        skew_ns / 1e6,
        (first_ns / 1e6, second_ns / 1e6),
        unit="ms",
        text=f"{attempt.name}: the ranks started within {significant(skew_ns / 1e6, 3)} ms"
        + (clocks if uncertainty_ns else ""),
        remedy="keep other load off the nodes, synchronise their clocks, or measure for longer",
    )


def late_start(e: StepEvidence) -> Reason | None:
    """Compare the start times with the due time."""
    late = [
        (w.started_wall_ns - w.due_wall_ns, w, attempt)
        for attempt, w in witnessed(e.counted)
        if w.started_wall_ns and w.due_wall_ns
    ]
    if not late:
        return None
    late_ns, witness, attempt = max(late, key=lambda item: item[0])
    return graded(
        "late-start",
        max(late_ns, 0) / 1e6,
        LATE_START_NS / 1e6,
        unit="ms",
        text=f"{attempt.name} started {significant(late_ns / 1e6, 3)} ms after its due time on "
        f"{place_of(witness)}",
        remedy="keep other load off the node: starting a command takes a few milliseconds",
    )


def throttled(e: StepEvidence) -> Reason | None:
    """Judge the time in which the CPU quota throttled a rank."""
    return _worst_share(
        e,
        "throttled",
        lambda w, length_ns: stopped_share(
            throttled_ns=w.throttled_ns, used_ns=w.cpu_ns, length_ns=length_ns
        ),
        THROTTLED_SHARE,
        "the CPU quota throttled {place} for {share:.1%} of the step {step}",
        "raise or remove the CPU limit of the ranks (deployment.pods.rank)",
    )


def cpu_pressure(e: StepEvidence) -> Reason | None:
    """Judge the time in which a task of the node waited for a CPU."""
    return _pressure(
        e,
        "cpu-pressure",
        lambda w, _: w.cpu_pressure,
        CPU_PRESSURE,
        "tasks on the node of {place} waited for a CPU in {share:.1%} of the step {step}",
        "keep other load off the node, or start fewer processes than it has cores",
    )


def memory_pressure(e: StepEvidence) -> Reason | None:
    """Judge the time in which a task of the node waited for memory."""
    return _pressure(
        e,
        "memory-pressure",
        lambda w, _: w.memory_pressure,
        MEMORY_PRESSURE,
        "tasks on the node of {place} waited for memory in {share:.1%} of the step {step}",
        "keep other load off the node, or make the workload smaller",
    )


def stolen(e: StepEvidence) -> Reason | None:
    """Judge the steal time: CPU time that the machine's host used for others."""
    return _worst_share(
        e,
        "stolen",
        lambda w, length_ns: w.stolen_ns / length_ns,
        STOLEN_SHARE,
        "the host took {share:.1%} of the CPU time of the machine of {place} in the step {step}",
        "run on machines with dedicated cores (not burstable or shared)",
    )


def repetitions(e: StepEvidence) -> Reason | None:
    """Judge the standard deviation of the headline metric over repetitions."""
    values: dict[str, list[float]] = {}
    headlines: dict[str, str] = {}
    for attempt in e.counted:
        tag = e.headline_of(attempt)
        if tag in attempt.reading.values:
            headlines[attempt.plan.step.name] = tag
            values.setdefault(attempt.plan.step.name, []).append(attempt.reading.values[tag])
    repeated = {name: found for name, found in values.items() if len(found) > 1}
    if not values:
        return None
    if not repeated:
        return note("repetitions", "one repetition does not show the noise: set repetitions: 5")
    name = max(repeated, key=lambda step: _spread(repeated[step]))
    spread = _spread(repeated[name])
    return graded(
        "repetitions",
        spread,
        SPREAD,
        text=f"{headlines[name]} of {name} differs by {spread:.1%} (standard deviation) over "
        f"{len(repeated[name])} repetitions",
        remedy="check what else runs on the nodes; measure for longer, or with more repetitions",
    )


def _spread(values: Sequence[float]) -> float:
    average = fmean(values)
    return stdev(values) / abs(average) if average else 0.0


def courier_load(e: StepEvidence) -> Reason | None:
    """Judge the CPU time of the courier."""
    return _worst_share(
        e,
        "courier-load",
        lambda w, length_ns: w.courier_cpu_ns / max(length_ns, MIN_LOAD_NS),
        COURIER_SHARE,
        "the courier of {place} took {share:.1%} of a core in the step {step}",
        "make the tool print less while it runs",
    )


def _pressure(
    e: StepEvidence,
    check: str,
    share_of: Callable[[RankWitness, int], float | None],
    limit: float,
    text: str,
    remedy: str,
) -> Reason | None:
    """Grade a share that is missing on kernels without PSI."""
    reason = _worst_share(e, check, share_of, limit, text, remedy)
    if reason is None and e.counted:
        return note(check, "no node's kernel reports this (/proc/pressure), so it is not judged")
    return reason


def _worst_share(
    e: StepEvidence,
    check: str,
    share_of: Callable[[RankWitness, int], float | None],
    limits: tuple[float, float] | float,
    text: str,
    remedy: str,
) -> Reason | None:
    """Grade the worst rank and step by a share of the step's length, if known."""
    shares = [
        (share, witness, attempt)
        for attempt, witness in witnessed(e.counted)
        if attempt.length_ns and (share := share_of(witness, attempt.length_ns)) is not None
    ]
    if not shares:
        return None
    share, witness, attempt = max(shares, key=lambda item: item[0])
    filled = text.format(place=place_of(witness), share=share, step=attempt.name)
    return graded(check, share, limits, text=filled, remedy=remedy)
