"""Which address a new connection uses, depending on the outcome of earlier ones."""

import socket

from aiperf_svc.core.load.target_addresses import (
    FALLBACK_NS,
    MAX_PROBE_PAUSE_NS,
    PROBE_AFTER_NS,
    SocketAddress,
    TargetAddresses,
    add_up,
)
from aiperf_svc.protocol.messages.reports import AddressUse

MS = 1_000_000
NOW = 10_000 * MS


def found(*names: str) -> list[SocketAddress]:
    return [SocketAddress(int(socket.AF_INET), (name, 80)) for name in names]


def names(addresses: TargetAddresses, count: int) -> list[str]:
    return [addresses.next().name for _ in range(count)]


def test_new_connections_use_all_addresses_in_turn() -> None:
    assert names(TargetAddresses(found("a", "b", "c")), 5) == ["a", "b", "c", "a", "b"]


def test_workers_begin_with_different_addresses() -> None:
    firsts = []
    for rank in range(4):
        addresses = TargetAddresses(found("a", "b", "c"))
        addresses.begin_with(rank)
        firsts.append(addresses.next().name)
    assert firsts == ["a", "b", "c", "a"]


def test_down_address_gets_no_connections() -> None:
    addresses = TargetAddresses(found("a", "b", "c"))
    down = addresses.next()
    addresses.failed(down, "refused", began=NOW, now=NOW)
    assert (down.failures, down.error, addresses.has_up) == (1, "refused", True)
    assert "a" not in names(addresses, 6)
    addresses.connected(down, began=NOW, now=NOW + MS)
    assert "a" in names(addresses, 3)


def test_oldest_failure_is_tried_when_all_are_down() -> None:
    addresses = TargetAddresses(found("a", "b"))
    for at in range(2):
        addresses.failed(addresses.next(), "refused", began=NOW + at, now=NOW + at)
    assert not addresses.has_up
    assert names(addresses, 2) == ["a", "a"]


def test_address_that_admitted_connection_is_not_down() -> None:
    addresses = TargetAddresses(found("a", "b"))
    busy = addresses.next()
    addresses.connected(busy, began=NOW, now=NOW + MS)
    addresses.failed(busy, "timed out", began=NOW, now=NOW + 2 * MS)
    assert (busy.is_down, busy.failures) == (False, 1)
    assert not addresses.is_silent(busy, began=NOW)


def test_silent_address_is_left_only_for_another() -> None:
    alone = TargetAddresses(found("a"))
    assert not alone.is_silent(alone.next(), began=NOW)
    addresses = TargetAddresses(found("a", "b"))
    first, second = addresses.next(), addresses.next()
    assert addresses.is_silent(first, began=NOW)
    addresses.failed(second, "refused", began=NOW, now=NOW)
    assert not addresses.is_silent(first, began=NOW)


def test_slow_connects_extend_the_fallback_delay() -> None:
    addresses = TargetAddresses(found("a", "b"))
    assert addresses.fallback_ns == FALLBACK_NS
    addresses.connected(addresses.next(), began=NOW, now=NOW + 300 * MS)
    assert addresses.fallback_ns == 900 * MS
    addresses.connected(addresses.next(), began=NOW, now=NOW + 20 * MS)
    assert addresses.fallback_ns == FALLBACK_NS


def test_probes_of_down_address_back_off() -> None:
    addresses = TargetAddresses(found("a", "b"))
    down, now, pauses = addresses.next(), NOW, []
    for _ in range(8):
        addresses.failed(down, "refused", began=now, now=now)
        pauses.append(down.probe_mono_ns - now)
        assert addresses.probes(down.probe_mono_ns - 1) == []
        assert addresses.probes(down.probe_mono_ns) == [down]
        now = down.probe_mono_ns
    assert pauses[:3] == [PROBE_AFTER_NS, 2 * PROBE_AFTER_NS, 4 * PROBE_AFTER_NS]
    assert pauses[-1] == MAX_PROBE_PAUSE_NS


def test_the_only_address_is_never_probed() -> None:
    addresses = TargetAddresses(found("a"))
    addresses.failed(addresses.next(), "refused", began=NOW, now=NOW)
    assert addresses.probes(NOW + MAX_PROBE_PAUSE_NS) == []


def test_lookup_keeps_known_and_drops_missing_addresses() -> None:
    addresses = TargetAddresses(found("a", "b"))
    gone, stays = addresses.next(), addresses.next()
    for each in (gone, stays):
        addresses.failed(each, "refused", began=NOW, now=NOW)
    assert addresses.wants_lookup
    addresses.replace(found("c", "b", "c"))
    assert not addresses.wants_lookup
    assert [each.name for each in addresses.in_use] == ["c", "b"]
    assert names(addresses, 2) == ["c", "c"]
    assert stays.is_down
    assert [each.name for each in addresses.known] == ["a", "b", "c"]


def test_address_uses_of_workers_add_up() -> None:
    uses = [
        AddressUse("a", connections=2, requests=20, failures=1, error="refused"),
        AddressUse("b", connections=1, requests=10),
        AddressUse("a", connections=3, requests=30, is_down=True),
    ]
    assert add_up(uses) == (
        AddressUse("a", connections=5, requests=50, failures=1, error="refused", is_down=True),
        AddressUse("b", connections=1, requests=10),
    )
