"""Checks of the verdict that every kind of workload has: can the tool's numbers be believed?

Each compares what the tool says, or what was asked for, with what the couriers saw of their ranks.
A check that finds nothing to compare says so as `info` or is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, stdev

import msgspec

from aiperf_svc.config.workload import AnyWorkloadConfig
from aiperf_svc.core.verdict.check_result import Reason, Severity, graded, told
from aiperf_svc.protocol.step_messages import CommandEnd, RankWitness
from aiperf_svc.workloads.base import ClaimedBytes, PlannedStep, Reading

# A pair holds two limits: beyond the first the run is degraded, beyond the second invalid.
BYTES_ABOVE = (0.0, 0.02)
"""Limits of bytes that a tool claims beyond those that its interface carried. The interface carries
headers too, so any excess is wrong."""
UNSENT_BYTES = 4_000_000
"""Bytes that a sender has written and its sockets may still hold at the end."""
UNSENT_SHARES = (0.10, 0.50)
"""Limits of these, as a share of what was carried: where only the sender claims, and where a
receiver claims too. The receiver's claim is exact, so a sender that claims more is then at most
degraded."""
BYTES_BELOW = (0.02, 0.25)
"""Limits of bytes that the interface carried beyond the claimed ones and their headers. Something
else used the network, or the tool counts too little."""
UNCLAIMED_BYTES = 1_000_000
"""Bytes of a step that no tool claims: its own control connection, the courier's messages."""
HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps, around the payload of each packet."""
ACKNOWLEDGEMENT_BYTES = 33
"""Acknowledgements for each packet: one of 66 bytes for every second one."""
START_SKEW_NS = (5_000_000, 100_000_000)
START_SKEW_SHARE = 0.01
"""Share of the step from which a skew is invalid, where that is less than 100 ms."""
LATE_START_NS = 100_000_000
THROTTLED_SHARE = (0.01, 0.20)
"""Limits of the time for which the CPU quota stopped a rank. From a fifth on, the quota is what was
measured."""
CPU_PRESSURE = 0.20
MEMORY_PRESSURE = 0.10
STOLEN_SHARE = 0.05
TOO_SHORT = (0.02, 0.10)
TOO_LONG = 0.10
LONGER_NS = 2_000_000_000
"""Time that a step may take beyond its length: to connect, to exchange results, to end."""
DROPPED_SHARE = 0.001
RETRANSMITTED_SHARE = 0.01
FEWEST_PACKETS = 10_000
"""Shares of fewer packets say nothing."""
PACKET_PAYLOAD = 1448
SPREAD = 0.05
"""Limit of the standard deviation over repetitions, as a share of the average."""
COURIER_SHARE = 0.02
SHORTEST_LOAD_NS = 1_000_000_000
"""A step shorter than this is taken for as long when its courier's load is judged: starting it
takes the same few milliseconds."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a step, as it is judged."""

    plan: PlannedStep
    problem: str
    was_retried: bool
    reading: Reading | None
    witnesses: tuple[RankWitness, ...]
    ends: tuple[CommandEnd, ...]

    @property
    def has_failed(self) -> bool:
        """True if this was the last attempt at its step, and failed."""
        return bool(self.problem) and not self.was_retried

    @property
    def name(self) -> str:
        """Step and repetition, for a text."""
        if self.plan.repetition > 1:
            return f"{self.plan.step.name} (repetition {self.plan.repetition})"
        return self.plan.step.name

    @property
    def silent_ranks(self) -> set[int]:
        """Ranks that took part and did not report."""
        step = self.plan.step
        wanted = {command.rank for command in (*step.servers, *step.commands)}
        wanted |= set(step.agent_ranks)
        return wanted - {witness.rank for witness in self.witnesses}

    @property
    def length_ns(self) -> int:
        """From the last rank's start to the end of the last command; 0 where none started."""
        starts = [w.started_wall_ns for w in self.witnesses if w.started_wall_ns]
        ends = [w.ended_wall_ns for w in self.witnesses if w.started_wall_ns]
        return max(max(ends) - max(starts), 0) if starts else 0

    @property
    def skew_ns(self) -> int | None:
        """From the first rank's start to the last one's; None with fewer than two."""
        starts = [w.started_wall_ns for w in self.witnesses if w.started_wall_ns]
        return max(starts) - min(starts) if len(starts) > 1 else None


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks judge."""

    config: AnyWorkloadConfig
    attempts: tuple[Attempt, ...]
    planned: int
    """Steps of the run, with all repetitions."""
    is_local: bool
    failure: str
    was_cancelled: bool
    headline: str
    """Tag of the headline metric."""

    @property
    def counted(self) -> list[Attempt]:
        """The attempts whose numbers count: of measured steps, and without a problem."""
        return [a for a in self.attempts if a.plan.step.is_measured and not a.problem]

    def headline_of(self, attempt: Attempt) -> str:
        """Tag of the metric that an attempt at a measured step must have."""
        return attempt.plan.step.headline or self.headline


def judge_steps(evidence: StepEvidence) -> tuple[Reason, ...]:
    """The results of all checks that apply."""
    found = (check(evidence) for check in CHECKS)
    return tuple(reason for reason in found if reason is not None)


def cause_of(evidence: StepEvidence, reasons: Iterable[Reason]) -> str:
    """Why an invalid run is invalid, in a word; empty if it is not, or not known."""
    invalid = {reason.check for reason in reasons if reason.severity is Severity.INVALID}
    return next((cause for check, cause in _CAUSES if check in invalid), "")


_CAUSES = (
    ("run", "run-failed"),
    ("rank-lost", "rank-lost"),
    ("oom", "step-failed"),
    ("step-failed", "step-failed"),
    ("exit-codes", "step-failed"),
    ("interface-bytes", "bytes-differ"),
    ("throttled", "rank-starved"),
)

# --- did everything run --------------------------------------------------------------------------


def _run(e: StepEvidence) -> Reason:
    return graded(
        "run",
        1.0 if e.failure else 0.0,
        (0.0, 0.0),
        unit="failed",
        text=f"the run failed: {e.failure}" if e.failure else "the run came to its end",
        remedy="look at what the failure names, and at the logs of the services",
    )


def _steps(e: StepEvidence) -> Reason:
    done = sum(not attempt.problem for attempt in e.attempts)
    failed = sum(attempt.has_failed for attempt in e.attempts)
    missing = e.planned - done - failed
    can_stand = e.was_cancelled and e.counted
    why = ": the run was stopped" if e.was_cancelled else ""
    return graded(
        "steps",
        float(missing),
        0.0 if can_stand else (0.0, 0.0),
        unit="steps",
        text=f"{done:,} of {e.planned:,} steps succeeded"
        + (f"; {missing:,} were not run{why}" if missing else ""),
        remedy="let the run come to its end",
    )


def _step_failed(e: StepEvidence) -> Reason:
    failed = [attempt for attempt in e.attempts if attempt.has_failed]
    first = f"; first {failed[0].name}" if failed else ""
    return graded(
        "step-failed",
        float(len(failed)),
        (0.0, 0.0),
        unit="steps",
        text=f"failed steps: {len(failed):,}{first}" if failed else "no step failed",
        remedy="look at what the step left under raw/",
    )


def _retried(e: StepEvidence) -> Reason | None:
    if not e.config.workload.retries:
        return None
    retried = [attempt for attempt in e.attempts if attempt.was_retried]
    first = f"; first {retried[0].name}: {retried[0].problem}" if retried else ""
    return graded(
        "retried",
        float(len(retried)),
        0.0,
        unit="attempts",
        text=f"{len(retried):,} attempts failed and were made again{first}",
        remedy="find out why it fails at times: the numbers are of the attempts that succeeded",
    )


def _exit_codes(e: StepEvidence) -> Reason:
    bad = [
        (attempt.name, end.exit_code)
        for attempt in e.attempts
        if not attempt.was_retried
        for end in attempt.ends
        if end.exit_code and not end.was_told_to_end
    ]
    first = f"; first {bad[0][0]}: {_exit_text(bad[0][1])}" if bad else ""
    return graded(
        "exit-codes",
        float(len(bad)),
        (0.0, 0.0),
        unit="commands",
        text=f"commands that did not exit with 0: {len(bad):,}{first}",
        remedy="look at the command's standard error under raw/",
    )


def _exit_text(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"


def _values(e: StepEvidence) -> Reason | None:
    if not e.headline or not e.counted:
        return None
    without = [
        a for a in e.counted if a.reading is None or e.headline_of(a) not in a.reading.values
    ]
    tag = e.headline_of((without or e.counted)[0])
    return graded(
        "values",
        float(len(without)),
        (0.0, 0.0),
        unit="steps",
        text=f"{len(without):,} of {len(e.counted):,} measured steps have no {tag}",
        remedy="look at the tool's output under raw/",
    )


def _rank_lost(e: StepEvidence) -> Reason:
    lost = sorted({rank for attempt in _not_retried(e) for rank in attempt.silent_ranks})
    names = ", ".join(map(str, lost))
    return graded(
        "rank-lost",
        float(len(lost)),
        (0.0, 0.0),
        unit="ranks",
        text=f"rank{'s' * (len(lost) > 1)} {names} did not report a step in which they took part"
        if lost
        else "every rank reported each of its steps",
        remedy="look at the rank's pod or process: its last state, its node, its log",
    )


def _oom(e: StepEvidence) -> Reason:
    kills = [(w.oom_kills, w, a) for a, w in _seen(_not_retried(e)) if w.oom_kills]
    count = sum(number for number, _, _ in kills)
    where = f": first on {_place(kills[0][1])} in {kills[0][2].name}" if kills else ""
    return graded(
        "oom",
        float(count),
        (0.0, 0.0),
        unit="processes",
        text=f"the kernel killed {count:,} processes of the ranks for want of memory{where}",
        remedy="raise the memory of the ranks (deployment.pods.rank), or make the workload smaller",
    )


# --- is it what the tool says --------------------------------------------------------------------


def _interface_bytes(e: StepEvidence) -> Reason | None:
    if not e.counted:
        return None
    found = [reason for attempt in e.counted for reason in _bytes_of(attempt)]
    if not found:
        return told(
            "interface-bytes",
            "the tool does not say how many bytes it moved over the network, so the interfaces' "
            "counters have nothing to confirm",
        )
    return _worst(found)


def _bytes_of(attempt: Attempt) -> Iterator[Reason]:
    assert attempt.reading is not None
    claims = {
        rank: claim
        for rank, claim in attempt.reading.claimed_bytes.items()
        if claim.sent or claim.received
    }
    is_confirmed = any(claim.received for claim in claims.values())
    seen = {w.rank: w for w in attempt.witnesses}
    shared = [w for w in attempt.witnesses if w.is_shared_network]
    if shared and len({w.node for w in attempt.witnesses}) == 1:
        # All traffic between ranks of one machine crosses its loopback, once.
        carried = max(w.loopback_bytes for w in shared)
        where = f"by the loopback of {_place(shared[0])}"
        sent = sum(claim.sent for claim in claims.values())
        received = sum(claim.received for claim in claims.values())
        if sent:
            yield _sent_above(sent, carried, where, attempt, is_confirmed=is_confirmed)
        if received:
            yield _claimed_above(received, carried, BYTES_ABOVE, 0, where, attempt)
        return
    for rank, claim in claims.items():
        witness = seen.get(rank)
        if witness is None:
            continue
        place = f"by the interfaces of {_place(witness)}"
        if claim.sent:
            carried, where = witness.interface_tx_bytes, f"sent {place}"
            yield _sent_above(claim.sent, carried, where, attempt, is_confirmed=is_confirmed)
            if not witness.is_shared_network:
                yield _claimed_below(claim, claim.sent, carried, where, attempt)
        if claim.received:
            carried, where = witness.interface_rx_bytes, f"received {place}"
            yield _claimed_above(claim.received, carried, BYTES_ABOVE, 0, where, attempt)
            if not witness.is_shared_network:
                # Datagrams that the tool's full socket refused have crossed the interface.
                arrived = claim.received + witness.udp_errors * claim.packet_payload
                yield _claimed_below(claim, arrived, carried, where, attempt)


def _sent_above(
    claimed: int, carried: int, where: str, attempt: Attempt, *, is_confirmed: bool
) -> Reason:
    unsent = min(UNSENT_BYTES, round(UNSENT_SHARES[is_confirmed] * carried))
    limits = BYTES_ABOVE[0] if is_confirmed else BYTES_ABOVE
    return _claimed_above(claimed, carried, limits, unsent, where, attempt)


def _claimed_above(
    claimed: int,
    carried: int,
    limits: tuple[float, float] | float,
    unsent: int,
    where: str,
    attempt: Attempt,
) -> Reason:
    return graded(
        "interface-bytes",
        max(claimed - unsent - carried, 0) / carried if carried else 1.0,
        limits,
        text=f"{attempt.name}: the tool claims {claimed:,} bytes; {carried:,} were seen: {where}",
        remedy="look at the tool's output under raw/: it did not move over this network what it "
        "says, or moved it on another way (shared memory, a device that the kernel does not count)",
    )


def _claimed_below(
    claim: ClaimedBytes, claimed: int, carried: int, where: str, attempt: Attempt
) -> Reason:
    around = HEADER_BYTES + ACKNOWLEDGEMENT_BYTES
    overhead = around / (around + claim.packet_payload)
    unclaimed = max(carried - claimed - UNCLAIMED_BYTES, 0)
    return graded(
        "interface-bytes",
        unclaimed / max(carried, 1),
        (overhead + BYTES_BELOW[0], overhead + BYTES_BELOW[1]),
        text=f"{attempt.name}: the tool claims {claimed:,} bytes; {carried:,} were seen: "
        f"{where}; headers explain {overhead:.1%} of them",
        remedy="keep other traffic away from the ranks, or look whether the tool counts all of its "
        "own",
    )


def _step_length(e: StepEvidence) -> Reason | None:
    known = [a for a in e.counted if a.plan.step.expected_ns and a.length_ns]
    return _worst([_length(attempt) for attempt in known]) if known else None


def _length(attempt: Attempt) -> Reason:
    expected_ns = attempt.plan.step.expected_ns
    short = 1 - attempt.length_ns / expected_ns
    long = (attempt.length_ns - expected_ns - LONGER_NS) / expected_ns
    is_short = short > 0
    return graded(
        "step-length",
        short if is_short else max(long, 0.0),
        TOO_SHORT if is_short else TOO_LONG,
        text=f"{attempt.name} took {attempt.length_ns / 1e9:.3g} s; {expected_ns / 1e9:g} s were "
        "asked for",
        remedy="look at the tool's output under raw/: did it end early, or wait for something?",
    )


def _tool_versions(e: StepEvidence) -> Reason | None:
    found: dict[str, str] = {}
    for attempt in e.counted:
        assert attempt.reading is not None
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
        text=f"the ranks ran different versions: {names}" if len(found) > 1 else f"all ran {names}",
        remedy="give all ranks the same image",
    )


def _same_node(e: StepEvidence) -> Reason | None:
    several = [a for a in e.counted if len(a.witnesses) > 1]
    if not several:
        return None
    if e.is_local:
        return told(
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
    text = "each rank of a step had a node of its own"
    if first is not None:
        text = f"ranks {first[0]} and {first[1]} were on one node, {first[2]}"
    return graded(
        "same-node",
        float(len(shared)),
        (0.0, 0.0),
        unit="pairs",
        text=f"{text}; deployment.ranks.nodes asks for apart",
        remedy="look at the cluster's nodes and the ranks' pods: who placed them so?",
    )


# --- did they run together, and unhindered -------------------------------------------------------


def _start_skew(e: StepEvidence) -> Reason | None:
    found = [_skew(a, a.skew_ns) for a in e.counted if a.skew_ns is not None]
    return _worst(found) if found else None


def _skew(attempt: Attempt, skew_ns: int) -> Reason:
    uncertainty_ns = max(w.clock_uncertainty_ns for w in attempt.witnesses)
    first_ns = START_SKEW_NS[0] + uncertainty_ns
    share_ns = START_SKEW_SHARE * attempt.length_ns if attempt.length_ns else START_SKEW_NS[1]
    second_ns = max(first_ns, min(START_SKEW_NS[1], share_ns))
    return graded(
        "start-skew",
        skew_ns / 1e6,
        (first_ns / 1e6, second_ns / 1e6),
        unit="ms",
        text=f"{attempt.name}: the ranks started within {skew_ns / 1e6:.3g} ms"
        + (f"; their clocks are known to {uncertainty_ns / 1e6:.3g} ms" if uncertainty_ns else ""),
        remedy="keep other load off the nodes, synchronise their clocks, or measure for longer",
    )


def _late_start(e: StepEvidence) -> Reason | None:
    late = [
        (w.started_wall_ns - w.due_wall_ns, w, attempt)
        for attempt, w in _seen(e.counted)
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
        text=f"{attempt.name} started {late_ns / 1e6:.3g} ms after its due time on "
        f"{_place(witness)}",
        remedy="keep other load off the node: starting a command takes a few milliseconds",
    )


def _throttled(e: StepEvidence) -> Reason | None:
    return _worst_share(
        e,
        "throttled",
        lambda w, length_ns: min(w.throttled_ns / length_ns, 1.0),
        THROTTLED_SHARE,
        "the CPU quota stopped {place} for {share:.1%} of the step {step}",
        "raise or remove the CPU limit of the ranks (deployment.pods.rank)",
    )


def _cpu_pressure(e: StepEvidence) -> Reason | None:
    return _worst_share(
        e,
        "cpu-pressure",
        lambda w, _: w.cpu_pressure,
        CPU_PRESSURE,
        "tasks of the node of {place} waited for a CPU in {share:.1%} of the step {step}",
        "keep other load off the node, or start fewer processes than it has cores",
    )


def _memory_pressure(e: StepEvidence) -> Reason | None:
    return _worst_share(
        e,
        "memory-pressure",
        lambda w, _: w.memory_pressure,
        MEMORY_PRESSURE,
        "tasks of the node of {place} waited for memory in {share:.1%} of the step {step}",
        "keep other load off the node, or make the workload smaller",
    )


def _stolen(e: StepEvidence) -> Reason | None:
    return _worst_share(
        e,
        "stolen",
        lambda w, length_ns: w.stolen_ns / length_ns,
        STOLEN_SHARE,
        "the host took {share:.1%} of the CPU time of the machine of {place} in the step {step}",
        "run on machines whose cores are their own (no burstable or shared ones)",
    )


def _courier_load(e: StepEvidence) -> Reason | None:
    return _worst_share(
        e,
        "courier-load",
        lambda w, length_ns: w.courier_cpu_ns / max(length_ns, SHORTEST_LOAD_NS),
        COURIER_SHARE,
        "the courier of {place} took {share:.1%} of a core in the step {step}",
        "make the tool print less while it runs",
    )


def _worst_share(
    e: StepEvidence,
    check: str,
    share_of: Callable[[RankWitness, int], float],
    limits: tuple[float, float] | float,
    text: str,
    remedy: str,
) -> Reason | None:
    """Grade the worst rank and step by a share of the step's length."""
    shares = [
        (share_of(witness, attempt.length_ns), witness, attempt)
        for attempt, witness in _seen(e.counted)
        if attempt.length_ns
    ]
    if not shares:
        return None
    share, witness, attempt = max(shares, key=lambda item: item[0])
    said = text.format(place=_place(witness), share=share, step=attempt.name)
    return graded(check, share, limits, text=said, remedy=remedy)


def _drops(e: StepEvidence) -> Reason | None:
    def of(w: RankWitness) -> tuple[int, int]:
        return w.dropped_packets + w.udp_errors, w.interface_rx_bytes + w.interface_tx_bytes

    return _packets(
        e,
        "drops",
        of,
        DROPPED_SHARE,
        "{count:,} packets were dropped at {place} in the step {step}",
        "look at the interface's queues and the socket buffers, or send slower",
    )


def _retransmits(e: StepEvidence) -> Reason | None:
    def of(w: RankWitness) -> tuple[int, int]:
        return w.tcp_retransmits, w.interface_tx_bytes

    return _packets(
        e,
        "retransmits",
        of,
        RETRANSMITTED_SHARE,
        "TCP sent {count:,} segments again from {place} in the step {step}",
        "look for a lossy link or a full queue between the nodes",
    )


def _packets(
    e: StepEvidence,
    check: str,
    of: Callable[[RankWitness], tuple[int, int]],
    limit: float,
    text: str,
    remedy: str,
) -> Reason | None:
    """Grade a count of packets as a share of those that carried the step's bytes. Where others use
    the interfaces too, it is only told."""
    found = []
    for attempt, witness in _seen(e.counted):
        count, size = of(witness)
        found.append((count / max(size / PACKET_PAYLOAD, FEWEST_PACKETS), count, witness, attempt))
    if not found:
        return None
    share, count, witness, attempt = max(found, key=lambda item: item[0])
    said = text.format(count=count, place=_place(witness), step=attempt.name)
    if witness.is_shared_network:
        return told(check, f"{said}, by whoever uses the machine's network")
    return graded(check, share, limit, text=said, remedy=remedy)


def _repetitions(e: StepEvidence) -> Reason | None:
    values: dict[str, list[float]] = {}
    headlines: dict[str, str] = {}
    for attempt in e.counted:
        tag = e.headline_of(attempt)
        if attempt.reading is not None and tag in attempt.reading.values:
            headlines[attempt.plan.step.name] = tag
            values.setdefault(attempt.plan.step.name, []).append(attempt.reading.values[tag])
    repeated = {name: found for name, found in values.items() if len(found) > 1}
    if not values:
        return None
    if not repeated:
        return told(
            "repetitions", "one repetition says nothing about noise; repetitions: 5 would show it"
        )
    name = max(repeated, key=lambda step: _spread(repeated[step]))
    spread = _spread(repeated[name])
    return graded(
        "repetitions",
        spread,
        SPREAD,
        text=f"{headlines[name]} of {name} differs by {spread:.1%} (standard deviation) over "
        f"{len(repeated[name])} repetitions",
        remedy="look for what else runs on the nodes; measure for longer or more often",
    )


def _spread(values: Sequence[float]) -> float:
    average = fmean(values)
    return stdev(values) / abs(average) if average else 0.0


def _worst(reasons: Sequence[Reason]) -> Reason:
    """The result that says most against the run, of one check on several steps."""
    order = list(Severity)
    return max(reasons, key=lambda r: (order.index(r.severity), r.measured - r.limit))


def _not_retried(e: StepEvidence) -> list[Attempt]:
    return [attempt for attempt in e.attempts if not attempt.was_retried]


def _seen(attempts: Iterable[Attempt]) -> Iterator[tuple[Attempt, RankWitness]]:
    return ((attempt, witness) for attempt in attempts for witness in attempt.witnesses)


def _place(witness: RankWitness) -> str:
    return f"rank {witness.rank} on {witness.node}" if witness.node else f"rank {witness.rank}"


CHECKS: tuple[Callable[[StepEvidence], Reason | None], ...] = (
    _run,
    _steps,
    _step_failed,
    _retried,
    _exit_codes,
    _values,
    _rank_lost,
    _oom,
    _interface_bytes,
    _step_length,
    _tool_versions,
    _same_node,
    _start_skew,
    _late_start,
    _throttled,
    _cpu_pressure,
    _memory_pressure,
    _stolen,
    _drops,
    _retransmits,
    _repetitions,
    _courier_load,
)
