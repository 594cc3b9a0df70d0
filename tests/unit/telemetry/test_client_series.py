"""The series of our own services: the busiest service of each kind, and lost CPU."""

from aiperf_svc.core.telemetry import client_series
from aiperf_svc.core.telemetry.client_series import ClientSeries
from aiperf_svc.protocol.messages.reports import Vitals
from aiperf_svc.protocol.services import Service
from tests.support.fake_sources import at


def last(series: ClientSeries, name: str, label: str = "") -> float:
    (number,) = [
        number
        for number, each in enumerate(series.log.series)
        if each.series.name == name and (not label or label in dict(each.series.labels).values())
    ]
    return series.log.last(number)


def beat(series: ClientSeries, sender: str, second: float, **vitals: float) -> None:
    health = Vitals(**vitals)  # type: ignore[arg-type]
    series.add(sender, Service.WORKER, health, at_wall_ns=at(second))


def sample(series: ClientSeries, second: float, in_flight: int = 0) -> None:
    series.sample(at(second), in_flight=in_flight, completed=0, errored=0)


def test_the_busiest_of_a_kind_counts() -> None:
    series = ClientSeries()
    beat(series, "worker-0", 0, cpu_fraction=0.3, loop_lag_ns=9_000_000)
    beat(series, "worker-1", 0, cpu_fraction=0.8, loop_lag_ns=2_000_000)
    sample(series, 0.5, in_flight=7)
    assert last(series, client_series.CPU, "worker") == 0.8
    assert last(series, client_series.LAG, "worker") == 0.009
    assert [plot.name for plot in client_series.plots(series.log)] == [
        client_series.CPU,
        client_series.LAG,
    ]


def test_lost_cpu_is_a_share_between_heartbeats() -> None:
    series = ClientSeries()
    for second in range(4):
        beat(
            series,
            "worker-0",
            second,
            pressure_ns=second * 250_000_000,
            stolen_ns=second * 10_000_000,
        )
    # An immediately repeated heartbeat is ignored.
    beat(series, "worker-0", 3.1, pressure_ns=750_000_000, stolen_ns=30_000_000)
    sample(series, 3.2)
    assert last(series, client_series.SHARE, "pressure") == 0.25
    assert last(series, client_series.SHARE, "stolen") == 0.01
    assert last(series, client_series.SHARE, "throttled") == 0.0
    (plot,) = client_series.plots(series.log)
    assert [label for label, _, _ in plot.lines] == [
        "pressure on the node",
        "stolen by the host",
        "over the quota",
    ]


def test_page_covers_present_services_once_a_second() -> None:
    series = ClientSeries()
    sample(series, 0)
    assert not series.log.has_pages
    beat(series, "worker-0", 0, cpu_fraction=0.9)
    for place in range(10):
        sample(series, place / 5)
    assert len(series.log.wall_ns) == 2
    beat(series, "worker-1", 9, cpu_fraction=0.2)
    sample(series, 10)
    assert last(series, client_series.CPU, "worker") == 0.2


def test_last_page_has_the_totals_of_the_load() -> None:
    series = ClientSeries()
    beat(series, "worker-0", 0, cpu_fraction=0.9)
    sample(series, 0)
    # Too soon after the previous page, and after a second without heartbeats.
    for pages, second in ((2, 0.1), (3, 60.0)):
        series.sample(at(second), in_flight=0, completed=5, errored=2, is_last=True)
        assert len(series.log.wall_ns) == pages
        assert last(series, client_series.COMPLETED) == 5
        assert last(series, client_series.ERRORED) == 2
