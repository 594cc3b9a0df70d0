"""Checks of a tool: do its reported bytes match the counters of the interfaces, and were packets
lost?"""

from collections.abc import Callable, Iterator

from aiperf_svc.core.verdict.check_result import Reason, graded, note
from aiperf_svc.protocol.messages.steps import RankWitness
from aiperf_svc.workloads.step_evidence import Attempt, StepEvidence, place_of, witnessed, worst
from aiperf_svc.workloads.steps import ClaimedBytes

# A pair contains two limits: beyond the first the run is degraded, beyond the second invalid.
BYTES_ABOVE = (0.0, 0.02)
"""Limits for bytes that a tool reports beyond those that its interface carried. The interface
counts headers too, so any excess is wrong."""
UNSENT_BYTES = 4_000_000
"""Bytes that a sender has written and that may still be in its socket buffers at the end."""
UNSENT_SHARES = (0.10, 0.50)
"""Limits for unsent bytes as a share of the carried bytes: if only the sender reports, and if a
receiver reports too. The receiver's report is exact, so an excess of the sender's then only
degrades the run."""
BYTES_BELOW = (0.02, 0.25)
"""Limits for bytes that the interface carried beyond the reported ones and their headers. Other
traffic used the network, or the tool counts too little."""
UNCLAIMED_BYTES = 1_000_000
"""Bytes of a step that no tool reports: its control connection, the courier's messages."""
HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps, per packet."""
ACKNOWLEDGEMENT_BYTES = 33
"""Acknowledgements per packet: one of 66 bytes for every second packet."""
PACKET_PAYLOAD = 1448
MIN_PACKETS = 10_000
"""Minimum packets for a share. With fewer, the share is random."""
DROPPED_SHARE = 0.001
RETRANSMITTED_SHARE = 0.01


def interface_bytes(e: StepEvidence) -> Reason | None:
    """Compare the bytes that the tool reports with the interfaces' counters."""
    if not e.counted:
        return None
    found = [reason for attempt in e.counted for reason in _bytes_of(attempt)]
    if not found:
        return note(
            "interface-bytes",
            "the tool does not report how many bytes it transferred, so the interfaces' counters "
            "cannot confirm its numbers",
        )
    return worst(found)


def _bytes_of(attempt: Attempt) -> Iterator[Reason]:
    claims = {
        rank: claim
        for rank, claim in attempt.reading.claimed_bytes.items()
        if claim.sent or claim.received
    }
    is_confirmed = any(claim.received for claim in claims.values())
    seen = {w.rank: w for w in attempt.witnesses}
    shared = [w for w in attempt.witnesses if w.is_shared_network]
    if shared and len({w.node for w in attempt.witnesses}) == 1:
        # All traffic between ranks of one machine crosses its loopback interface once.
        carried = max(w.loopback_bytes for w in shared)
        where = f"carried by the loopback of {place_of(shared[0])}"
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
        place = f"by the interfaces of {place_of(witness)}"
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
        text=f"{attempt.name}: the tool reports {claimed:,} bytes; {carried:,} were {where}",
        remedy="check the tool's output under raw/: it transferred less over this network than it "
        "reports, or used another path (shared memory, a device that the kernel does not count)",
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
        text=f"{attempt.name}: the tool reports {claimed:,} bytes; {carried:,} were {where}; "
        f"headers explain {overhead:.1%} of them",
        remedy="keep other traffic off the interfaces, or check whether the tool counts all of its "
        "own",
    )


def drops(e: StepEvidence) -> Reason | None:
    """Compare dropped packets and UDP errors with the packets of the step."""
    return _packets(
        e,
        "drops",
        lambda w: (w.dropped_packets + w.udp_errors, w.interface_rx_bytes + w.interface_tx_bytes),
        DROPPED_SHARE,
        "{count:,} packets were dropped at {place} in the step {step}",
        "check the interface's queues and the socket buffers, or lower the send rate",
    )


def retransmits(e: StepEvidence) -> Reason | None:
    """Compare retransmitted TCP segments with the packets of the step."""
    return _packets(
        e,
        "retransmits",
        lambda w: (w.tcp_retransmits, w.interface_tx_bytes),
        RETRANSMITTED_SHARE,
        "TCP retransmitted {count:,} segments from {place} in the step {step}",
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
    """Grade a count of packets as a share of those that carried the step's bytes. If other programs
    use the interfaces too, the result is only information."""
    found = []
    for attempt, witness in witnessed(e.counted):
        count, size = of(witness)
        found.append((count / max(size / PACKET_PAYLOAD, MIN_PACKETS), count, witness, attempt))
    if not found:
        return None
    share, count, witness, attempt = max(found, key=lambda item: item[0])
    filled = text.format(count=count, place=place_of(witness), step=attempt.name)
    if witness.is_shared_network:
        return note(check, f"{filled}, including those of other programs on its network")
    return graded(check, share, limit, text=filled, remedy=remedy)
