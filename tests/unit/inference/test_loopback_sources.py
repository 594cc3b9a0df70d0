"""More connections to this machine than one source address has ports."""

import ipaddress

from aiperf_svc.adapters.inference.resolved_target import loopback_sources

PORTS = (32_768, 60_999)


def test_few_connections_need_no_source_addresses() -> None:
    assert loopback_sources("127.0.0.1", 5_000, PORTS) == ()


def test_remote_target_gets_no_loopback_sources() -> None:
    assert loopback_sources("10.0.0.7", 1_000_000, PORTS) == ()


def test_each_address_uses_under_half_of_its_ports() -> None:
    for connections in (20_000, 100_000, 1_000_000, 10_000_000):
        sources = loopback_sources("127.0.0.1", connections, PORTS)
        assert len(set(sources)) == len(sources)
        assert all(ipaddress.ip_address(source).is_loopback for source in sources)
        assert len(sources) * (PORTS[1] - PORTS[0]) > 2 * connections
