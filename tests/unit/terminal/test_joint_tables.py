"""The table of several runs is complete on a narrow terminal."""

import pytest

from aiperf_svc.adapters.report import joint_page
from aiperf_svc.adapters.terminal.joint_tables import print_joint
from aiperf_svc.core.results.cache_stats import CacheUse, SessionCache, TurnCache
from aiperf_svc.core.results.joint_result import Joint, JointMember
from aiperf_svc.core.results.run_result import MetricStats
from tests.support.html_balance import assert_is_balanced
from tests.support.terminal import on_console

METRICS = {
    "request_count": MetricStats(unit="requests", avg=12_345.0),
    "output_token_throughput": MetricStats(unit="tokens/sec", avg=123_456.7),
    "time_to_first_token": MetricStats(unit="ms", p50=123.45, p99=1_234.5),
}


def printed(*names: str, width: int = 80) -> list[str]:
    members = tuple(
        JointMember(
            name=name, where=name, folder="", state="done", reason="", exit_code=0,
            verdict="valid", metrics=METRICS,
        )
        for name in names
    )  # fmt: skip
    joint = Joint(
        kind="targets", name="x", exit_code=0, verdict="valid", members=members, total=METRICS
    )
    text = on_console(print_joint, joint, width=width)
    return [line.rstrip() for line in text[: text.index(f"{names[0]}: done")].splitlines()]


@pytest.mark.parametrize("name", ["eu-west", "127.0.0.1:1870"])
def test_six_runs_fit_80_columns(name: str) -> None:
    names = [f"{name}{number}" for number in range(6)]
    lines = printed(*names)
    assert max(map(len, lines)) <= 80
    heads = " ".join(line for line in lines if line.endswith("unit")).split()
    assert [each for each in heads if each != "unit"] == [*names, "total"]
    rows = " ".join(line for line in lines if line.strip().startswith("Output Token Throughput"))
    assert rows.split().count("123,457") == 7


def test_units_are_those_of_one_run() -> None:
    metrics = {
        "bandwidth": MetricStats(name="Bandwidth", unit="bit/s", avg=9.41e9),
        "cached_token_share": MetricStats(unit="ratio", avg=0.25),
    }
    member = JointMember(
        name="eu", where="eu", folder="", state="done", reason="", exit_code=0,
        verdict="valid", metrics=metrics,
    )  # fmt: skip
    joint = Joint(kind="clusters", name="x", exit_code=0, verdict="valid", members=(member,))
    lines = [line.split() for line in on_console(print_joint, joint, width=80).splitlines()]
    assert ["Bandwidth", "9.410", "Gbit/s"] in lines
    page = joint_page.render(joint).decode()
    assert "Bandwidth <small>Gbit/s</small></th><td>9.410</td>" in page
    assert "Cached Token Share <small>%</small></th><td>25</td>" in page


def test_single_percentile_of_a_metric_is_named() -> None:
    member = JointMember(
        name="eu", where="eu", folder="", state="done", reason="", exit_code=0,
        verdict="valid", metrics={"network_rtt": MetricStats(unit="ms", avg=0.5, p50=0.25)},
    )  # fmt: skip
    joint = Joint(kind="clusters", name="x", exit_code=0, verdict="valid", members=(member,))
    lines = [line.split() for line in on_console(print_joint, joint, width=80).splitlines()]
    assert ["Network", "Round", "Trip", "p50", "0.2500", "ms"] in lines


def test_cached_tokens_of_the_total_have_a_table() -> None:
    turns = tuple(
        TurnCache(turn=n, requests=4, known=2, prompt_tokens=100, cached_tokens=50 * n)
        for n in range(2)
    )
    use = CacheUse(turns=turns, sessions=SessionCache(count=2, p10=0.0, p50=0.25, p90=0.5))
    joint = Joint(kind="targets", name="x", exit_code=0, verdict=None, members=(), cache=use)
    text = on_console(print_joint, joint, width=80)
    assert ["2", "4", "100", "50", "50.0%"] in [line.split() for line in text.splitlines()]
    assert "50.0% of the requests report cached tokens" in text
    page = joint_page.render(joint).decode()
    assert_is_balanced(page)
    assert "Prefix cache by turn" in page


def test_fitting_columns_are_one_table() -> None:
    names = [f"eu-west{number}" for number in range(6)]
    assert sum(line.endswith("unit") for line in printed(*names, width=120)) == 1
    assert sum(line.endswith("unit") for line in printed("eu", "us")) == 1
