"""Each check of the verdict fails exactly for its problem."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.core.verdict.check_result import Reason, Severity
from aiperf_svc.protocol.messages.steps import CommandEnd, StepRecord
from aiperf_svc.workloads.results import CHECKS
from aiperf_svc.workloads.steps import ClaimedBytes
from aiperf_svc.workloads.traffic_checks import UNSENT_BYTES
from tests.support import fake_steps as fake

VALID, DEGRADED, INVALID = "valid", "degraded", "invalid"
MS = 1_000_000


def check(name: str, *records: StepRecord, **keys: Any) -> Reason:
    found = [reason for reason in fake.result(*records, **keys).checks if reason.check == name]
    assert len(found) == 1, f"{name} has {len(found)} results"
    return found[0]


def seen(**keys: Any) -> StepRecord:
    """Return a step in which rank 1 measured this."""
    return fake.record(witnesses=(fake.witness(0), fake.witness(1, **keys)))


def claimed(sent: int, received: int = 0, *, payload: int = 1448, **keys: Any) -> StepRecord:
    """Return a step in which rank 0's tool reports this."""
    claim = ClaimedBytes(sent=sent, received=received, packet_payload=payload)
    witnesses = (fake.witness(0, **keys), fake.witness(1))
    return fake.record(fake.reading(claimed_bytes={0: claim}), witnesses=witnesses)


def test_an_undisturbed_run_is_valid() -> None:
    records = [fake.record(fake.reading(tool="x 1"), number=n, repetition=n) for n in (1, 2, 3)]
    result = fake.result(*records)
    assert (result.verdict, result.cause) == (VALID, "")
    assert {reason.severity for reason in result.checks} == {Severity.VALID, Severity.INFO}


def test_each_check_has_a_limit_or_none() -> None:
    result = fake.result(claimed(fake.SENT))
    assert len(result.checks) <= len(CHECKS)
    for reason in result.checks:
        assert reason.text
        assert reason.remedy or reason.severity is Severity.INFO


def test_the_page_on_workloads_lists_every_check() -> None:
    page = Path(__file__).parents[3] / "docs" / "workloads.md"
    section = page.read_text().partition("## The verdict")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    assert listed == [check.__name__.strip("_").replace("_", "-") for check in CHECKS]


@pytest.mark.parametrize(
    ("payload", "severity"),
    [
        ({"sent": fake.SENT}, VALID),
        ({"sent": 0, "received": fake.SENT}, VALID),
        ({"sent": 0, "received": fake.SEEN + 1}, DEGRADED),
        ({"sent": fake.SEEN + UNSENT_BYTES}, VALID),
        ({"sent": fake.SEEN + UNSENT_BYTES + 1}, DEGRADED),
        ({"sent": round(fake.SEEN * 1.03)}, INVALID),
        ({"sent": 0, "received": fake.SENT * 10}, INVALID),
        ({"sent": round(fake.SEEN * 0.93)}, VALID),
        ({"sent": round(fake.SEEN * 0.90)}, DEGRADED),
        ({"sent": fake.SENT // 2}, INVALID),
    ],
)
def test_claimed_bytes_are_within_interface_bytes(payload: dict[str, int], severity: str) -> None:
    assert check("interface-bytes", claimed(**payload)).severity == severity


def test_senders_buffer_is_uncertain_beside_receivers_claim() -> None:
    carried = 12_000_000

    def both(sent: int, received: int) -> StepRecord:
        claims = {0: ClaimedBytes(sent=sent), 1: ClaimedBytes(received=received)}
        witnesses = (
            fake.witness(0, interface_tx_bytes=carried),
            fake.witness(1, interface_rx_bytes=carried),
        )
        return fake.record(fake.reading(claimed_bytes=claims), witnesses=witnesses)

    assert check("interface-bytes", both(15_000_000, 11_900_000)).severity == VALID
    assert check("interface-bytes", both(18_000_000, 11_900_000)).severity == DEGRADED
    assert check("interface-bytes", both(11_900_000, 18_000_000)).severity == INVALID
    assert (
        check("interface-bytes", claimed(18_000_000, interface_tx_bytes=carried)).severity
        == INVALID
    )


def test_datagrams_dropped_by_a_socket_crossed_the_interface() -> None:
    claims = {0: ClaimedBytes(received=fake.SENT // 2)}
    refused = fake.SENT // 2 // 1448
    witnesses = (fake.witness(0, udp_errors=refused), fake.witness(1))
    record = fake.record(fake.reading(claimed_bytes=claims), witnesses=witnesses)
    assert check("interface-bytes", record).severity == VALID
    assert check("drops", record).severity == DEGRADED


def test_headers_explain_more_where_packets_are_small() -> None:
    seen_bytes = round(fake.SENT * (536 + 99) / 536)
    record = claimed(fake.SENT, payload=536, interface_tx_bytes=seen_bytes)
    assert check("interface-bytes", record).severity == VALID
    record = claimed(fake.SENT, interface_tx_bytes=seen_bytes)
    assert check("interface-bytes", record).severity == DEGRADED


def test_bytes_missing_on_every_interface_are_invalid() -> None:
    record = claimed(fake.SENT, interface_tx_bytes=0)
    result = fake.result(record)
    assert (result.verdict, result.cause) == (INVALID, "bytes-differ")


def test_little_traffic_beside_small_claim_is_fine() -> None:
    record = claimed(10_000, interface_tx_bytes=500_000)
    assert check("interface-bytes", record).severity == VALID


def local(claim: int, loopback: int, **keys: Any) -> StepRecord:
    fields: dict[str, Any] = {
        "node": "here", "is_shared_network": True, "loopback_bytes": loopback,
        "interface_rx_bytes": 0, "interface_tx_bytes": 0, **keys,
    }  # fmt: skip
    claims = {0: ClaimedBytes(sent=claim), 1: ClaimedBytes(received=claim)}
    return fake.record(
        fake.reading(claimed_bytes=claims),
        witnesses=(fake.witness(0, **fields), fake.witness(1, **fields)),
    )


def test_loopback_counts_traffic_on_one_machine() -> None:
    assert check("interface-bytes", local(100, 120), is_local=True).severity == VALID
    assert check("interface-bytes", local(100, 9_000), is_local=True).severity == VALID
    assert check("interface-bytes", local(1000, 120), is_local=True).severity == INVALID


def test_shared_interfaces_reveal_only_excess_claims() -> None:
    nodes: dict[str, Any] = {"is_shared_network": True, "interface_tx_bytes": 9 * fake.SENT}
    assert check("interface-bytes", claimed(fake.SENT, **nodes)).severity == VALID
    nodes["interface_tx_bytes"] = fake.SENT // 2
    assert check("interface-bytes", claimed(fake.SENT, **nodes)).severity == INVALID


def test_tool_without_claim_is_noted() -> None:
    assert check("interface-bytes", fake.record()).severity == "info"


@pytest.mark.parametrize(
    ("skew_ms", "uncertainty_ms", "severity"),
    [(5, 0, VALID), (6, 0, DEGRADED), (6, 2, VALID), (100, 0, DEGRADED), (101, 0, INVALID)],
)
def test_ranks_start_together(skew_ms: int, uncertainty_ms: int, severity: str) -> None:
    started = fake.START_NS + MS + skew_ms * MS
    record = seen(
        started_wall_ns=started,
        ended_wall_ns=started + fake.LENGTH_NS,
        clock_uncertainty_ns=max(uncertainty_ms, 0) * MS,
    )
    record = msgspec.structs.replace(
        record,
        witnesses=tuple(
            msgspec.structs.replace(w, clock_uncertainty_ns=uncertainty_ms * MS)
            for w in record.witnesses
        ),
    )
    assert check("start-skew", record).severity == severity


def test_large_skew_of_a_short_step_is_invalid() -> None:
    started = fake.START_NS + MS + 20 * MS
    ended = started + 10**9
    record = fake.record(
        of=fake.step(expected_ns=0),
        witnesses=(
            fake.witness(0, ended_wall_ns=ended),
            fake.witness(1, started_wall_ns=started, ended_wall_ns=ended),
        ),
    )
    assert check("start-skew", record).severity == INVALID


def test_one_rank_that_starts_has_no_skew() -> None:
    result = fake.result(seen(started_wall_ns=0, ended_wall_ns=0))
    assert "start-skew" not in {reason.check for reason in result.checks}


@pytest.mark.parametrize(("late_ms", "severity"), [(100, VALID), (101, DEGRADED)])
def test_a_step_starts_when_it_is_due(late_ms: int, severity: str) -> None:
    started = fake.START_NS + late_ms * MS
    witnesses = tuple(
        fake.witness(n, started_wall_ns=started, ended_wall_ns=started + fake.LENGTH_NS)
        for n in (0, 1)
    )
    assert check("late-start", fake.record(witnesses=witnesses)).severity == severity


@pytest.mark.parametrize(
    ("name", "field", "at_limit", "beyond", "far_beyond"),
    [
        ("throttled", "throttled_ns", fake.LENGTH_NS // 100, fake.LENGTH_NS // 50, fake.LENGTH_NS),
        ("cpu-pressure", "cpu_pressure", 0.20, 0.21, None),
        ("memory-pressure", "memory_pressure", 0.10, 0.11, None),
        ("stolen", "stolen_ns", fake.LENGTH_NS // 20, fake.LENGTH_NS // 19, None),
        ("courier-load", "courier_cpu_ns", fake.LENGTH_NS // 50, fake.LENGTH_NS // 49, None),
        ("drops", "dropped_packets", 1, 10_000, None),
        ("drops", "udp_errors", 1, 10_000, None),
        ("retransmits", "tcp_retransmits", 7_000, 8_000, None),
        ("oom", "oom_kills", 0, None, 1),
    ],
)
def test_disturbances_of_a_rank_are_judged(
    name: str, field: str, at_limit: float, beyond: float | None, far_beyond: float | None
) -> None:
    for value, severity in ((at_limit, VALID), (beyond, DEGRADED), (far_beyond, INVALID)):
        if value is not None:
            assert check(name, seen(**{field: value})).severity == severity, value


@pytest.mark.parametrize("name", ["cpu-pressure", "memory-pressure"])
def test_uncounted_pressure_is_not_zero(name: str) -> None:
    field = name.replace("-", "_")
    unknown = {field: None}
    nobody = fake.record(witnesses=(fake.witness(0, **unknown), fake.witness(1, **unknown)))
    assert check(name, nobody).severity == "info"
    one_node = fake.record(witnesses=(fake.witness(0, **unknown), fake.witness(1, **{field: 0.9})))
    assert check(name, one_node).severity == DEGRADED


def test_a_starved_rank_is_the_cause() -> None:
    result = fake.result(seen(throttled_ns=fake.LENGTH_NS // 2))
    assert (result.verdict, result.cause) == (INVALID, "rank-starved")


def test_short_quota_stops_on_many_cpus_are_short() -> None:
    cpus, share = 32, 0.02
    reason = check(
        "throttled",
        seen(
            cpu_ns=round(cpus * fake.LENGTH_NS * (1 - share)),
            throttled_ns=round(cpus * fake.LENGTH_NS * share),
        ),
    )
    assert reason.severity == DEGRADED
    assert reason.measured == pytest.approx(share)


def test_packet_loss_of_others_is_only_noted() -> None:
    reason = check("drops", seen(dropped_packets=10_000, is_shared_network=True))
    assert reason.severity == "info"
    assert "10,000" in reason.text


def test_short_step_does_not_blame_its_courier() -> None:
    record = fake.record(
        of=fake.step(expected_ns=0),
        witnesses=(fake.witness(0, ended_wall_ns=fake.START_NS + 11 * MS, courier_cpu_ns=5 * MS),),
    )
    assert check("courier-load", record).severity == VALID


@pytest.mark.parametrize(
    ("length_s", "severity"),
    [(10, VALID), (9.9, VALID), (9.7, DEGRADED), (8, INVALID), (12.9, VALID), (13.1, DEGRADED)],
)
def test_step_takes_the_requested_time(length_s: float, severity: str) -> None:
    ended = fake.START_NS + MS + round(length_s * 1e9)
    record = fake.record(witnesses=tuple(fake.witness(n, ended_wall_ns=ended) for n in (0, 1)))
    assert check("step-length", record).severity == severity


def ended(*lengths_s: float) -> tuple[CommandEnd, ...]:
    """Return the ends of commands on ranks 0, 1, … with these times. A third one is a server."""
    started = fake.START_NS + MS
    return tuple(
        CommandEnd(
            index=index,
            exit_code=0,
            started_wall_ns=started,
            ended_wall_ns=started + round(length_s * 1e9),
        )
        for index, length_s in enumerate(lengths_s)
    )


@pytest.mark.parametrize(
    ("lengths_s", "severity"),
    [((10, 9.9), VALID), ((10, 9.7), DEGRADED), ((10, 5), INVALID), ((10, 10, 0.1), VALID)],
)
def test_early_end_of_a_rank_shortens_the_step(lengths_s: tuple[float, ...], severity: str) -> None:
    reason = check("step-length", fake.record(ends=ended(*lengths_s)))
    assert reason.severity == severity
    assert (" on rank 1;" in reason.text) is (lengths_s[1] < 10)


def test_apart_means_a_node_for_each_rank() -> None:
    assert check("same-node", fake.record()).severity == VALID
    assert check("same-node", seen(node="node-0")).severity == INVALID
    together = fake.config(deployment={"ranks": {"nodes": "together"}})
    names = {reason.check for reason in fake.result(seen(node="node-0"), config=together).checks}
    assert "same-node" not in names


def test_local_run_notes_that_no_network_was_measured() -> None:
    assert check("same-node", seen(node="node-0"), is_local=True).severity == "info"


def test_ranks_run_one_version() -> None:
    same = fake.record(fake.reading(tool="iperf 3.12", tools={0: "iperf 3.12", 1: "iperf 3.12"}))
    differs = fake.record(fake.reading(tool="iperf 3.12", tools={1: "iperf 3.16"}))
    assert check("tool-versions", same).severity == VALID
    assert check("tool-versions", differs).severity == DEGRADED


def outcome(result: ToolResult) -> tuple[str, str]:
    return result.verdict, result.cause


def test_a_failed_step_makes_the_run_invalid() -> None:
    good = fake.record()
    bad = fake.record(number=2, repetition=2, problem="rank 0: exit code 1")
    assert outcome(fake.result(good, bad)) == (INVALID, "step-failed")
    assert "(repetition 2)" in check("step-failed", good, bad).text


def test_garbage_makes_the_run_invalid() -> None:
    errors = fake.record(fake.reading(errors=("job 1: error 5",)))
    assert outcome(fake.result(errors)) == (INVALID, "step-failed")
    unread = msgspec.structs.replace(fake.record(), reading=b"")
    assert outcome(fake.result(unread)) == (INVALID, "step-failed")
    not_a_number = fake.record(fake.reading(float("nan")))
    assert outcome(fake.result(not_a_number)) == (INVALID, "step-failed")


def test_reading_without_the_headline_makes_the_run_invalid() -> None:
    without = msgspec.structs.replace(fake.reading(), values={"rtt": 1.0})
    assert check("values", fake.record(without)).severity == INVALID


def test_step_needs_only_its_own_headline() -> None:
    record = fake.record(of=fake.step(headline="iops"))
    assert check("values", record).text == "1 of 1 measured steps have no iops"
    values = msgspec.structs.replace(fake.reading(), values={"iops": 1.0})
    found = check("values", fake.record(values, of=fake.step(headline="iops")))
    assert found.severity == VALID


def test_retried_step_counts_once_and_is_noted() -> None:
    records = (
        fake.record(number=1, problem="rank 0: exit code 1"),
        fake.record(number=2, attempt=2),
    )
    config = fake.config(workload={"retries": 2})
    assert outcome(fake.result(*records, config=config, planned=1)) == (DEGRADED, "")
    assert check("retried", *records, config=config, planned=1).severity == DEGRADED
    assert check("retried", fake.record(), config=config).severity == VALID


@pytest.mark.parametrize(
    ("exit_code", "was_told_to_end", "severity"),
    [(0, False, VALID), (1, False, INVALID), (-9, False, INVALID), (-15, True, VALID)],
)
def test_nonzero_exit_is_allowed_only_when_stopped(
    exit_code: int, was_told_to_end: bool, severity: str
) -> None:
    end = CommandEnd(0, exit_code, 1, 2, was_told_to_end)
    assert check("exit-codes", fake.record(ends=(end,))).severity == severity


def test_unreporting_rank_is_lost() -> None:
    lost = fake.record(witnesses=(fake.witness(0),), problem="rank 1 was lost")
    assert outcome(fake.result(lost)) == (INVALID, "rank-lost")
    assert check("rank-lost", lost).text == "no report of a step from rank 1"


def test_a_failed_run_is_invalid() -> None:
    assert outcome(fake.result(failure="no rank came")) == (INVALID, "run-failed")


def test_missing_steps_are_reported() -> None:
    assert check("steps", fake.record(), planned=2).severity == INVALID
    assert check("steps", fake.record(), planned=2, was_cancelled=True).severity == DEGRADED
    nothing = fake.result(fake.record(problem="stopped"), planned=2, was_cancelled=True)
    assert nothing.verdict == INVALID


@pytest.mark.parametrize(("last", "severity"), [(9.9e9, VALID), (11e9, DEGRADED)])
def test_repetitions_agree(last: float, severity: str) -> None:
    records = [
        fake.record(fake.reading(value), number=n, repetition=n)
        for n, value in enumerate((9.4e9, 9.5e9, last), start=1)
    ]
    assert check("repetitions", *records).severity == severity


def test_noise_needs_several_repetitions() -> None:
    assert check("repetitions", fake.record()).severity == "info"


def test_steps_of_other_pairs_are_not_repetitions() -> None:
    records = [
        fake.record(fake.reading(value), number=n, of=fake.step(f"pair {n}"))
        for n, value in enumerate((1e9, 9e9), start=1)
    ]
    assert check("repetitions", *records).severity == "info"
