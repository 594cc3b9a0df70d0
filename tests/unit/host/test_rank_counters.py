"""Shares computed from two readings of counters."""

from pathlib import Path

import pytest

from aiperf_svc.adapters.ranks.counters import (
    Counters,
    interface_bytes,
    pressure_shares,
    read_counters,
)
from aiperf_svc.adapters.ranks.traffic import traffic_text

_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop ...
    lo: 5000 50 0 0 0 0 0 0 5000 50 0 0 0 0 0 0
  eth0: 1000 10 0 1 0 0 0 0 200 10 0 2 0 0 0 0
  net1: 30 10 0 0 0 0 0 0 4 10 0 0 0 0 0 0
"""
_UDP = """Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
Udp: 3 0 997 1000 997 0
"""
"""Linux's counters when 997 of 1,000 datagrams find a full socket."""
_STAT = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_pressure_is_the_share_between_two_readings() -> None:
    before = Counters(mono_ns=10**9, pressure_us={"cpu": 500_000, "io": 7})
    after = Counters(mono_ns=3 * 10**9, pressure_us={"cpu": 1_000_000, "io": 7, "memory": 9})
    assert pressure_shares(before, after) == {"cpu": 0.25, "io": 0.0, "memory": 0.0}


def test_a_share_is_at_most_the_whole_time() -> None:
    before, after = Counters(pressure_us={"cpu": 0}), Counters(pressure_us={"cpu": 10**6})
    assert pressure_shares(before, after) == {"cpu": 1.0}


def test_bytes_are_summed_without_the_loopback(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(_DEV)
    assert interface_bytes(tmp_path) == (1030, 204, 5000)


@pytest.mark.parametrize(
    ("interface", "wanted"), [("net1", (30, 4, 0)), ("eth0", (1000, 200, 3)), ("", (1030, 204, 3))]
)
def test_only_the_ranks_own_interface_counts(
    tmp_path: Path, interface: str, wanted: tuple[int, int, int]
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(_DEV)
    (tmp_path / "net/snmp").write_text(_UDP)
    (tmp_path / "stat").write_text(_STAT)
    found = read_counters({}, interface, tmp_path)
    assert (found.rx_bytes, found.tx_bytes, found.drops) == wanted
    assert found.loopback_bytes == 5000


def test_refused_datagram_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/dev").write_text(_DEV)
    (tmp_path / "net/snmp").write_text(_UDP)
    (tmp_path / "stat").write_text(_STAT)
    assert read_counters({}, "", tmp_path).udp_errors == 997


def test_traffic_has_the_unit_of_its_larger_direction() -> None:
    assert traffic_text(2e7, 9.4e9, 0.0) == "interfaces send 9.4 and receive 0.02 Gbit/s"
    assert traffic_text(3e3, 2e3, 11.24e9) == "interface lo carries 11.2 Gbit/s"
