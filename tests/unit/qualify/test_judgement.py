"""Verdicts on nodes and paths, and the trials of a qualification."""

import pytest
from msgspec.structs import replace

from aiperf_svc.core.experiments.trials import Trial
from aiperf_svc.core.qualify.judgement import Judgement
from aiperf_svc.core.qualify.measurements import (
    NODE,
    REPEAT,
    ROUND,
    STAGE,
    SUSPECTS,
    WITHOUT,
    Limit,
    Measurement,
    Rules,
    StagePlan,
    measurements_of,
    outliers,
)
from aiperf_svc.core.qualify.result import Better, CheckInfo, CheckResult, Qualification, Verdict
from aiperf_svc.core.results.tool_result import StepResult
from tests.support.fake_nodes import USUAL, FakeNodes

ALIKE = {f"n{number}": 100.0 + number / 100 for number in range(9)}


def verdicts(found: Qualification) -> dict[str, str]:
    return {node.node: node.verdict.value for node in found.nodes if node.verdict != "pass"}


def check_of(found: Qualification, node: str, check: str = "pairs_speed") -> CheckResult:
    judged = next(each for each in found.nodes if each.node == node)
    return next(each for each in judged.checks if each.check == check)


@pytest.mark.parametrize(
    ("value", "better", "expected"),
    [
        (94.0, "higher", {"bad"}),
        (96.0, "higher", set()),  # 600 deviations from the median, and within 5% of it
        (106.0, "higher", set()),
        (106.0, "lower", {"bad"}),
        (104.0, "lower", set()),
    ],
)
def test_outlier_differs_by_more_than_five_percent(
    value: float, better: str, expected: set[str]
) -> None:
    assert outliers(ALIKE | {"bad": value}, better) == expected  # type: ignore[arg-type]


def test_equal_values_make_a_slower_one_an_outlier() -> None:
    assert outliers(dict.fromkeys("abcdefgh", 100.0) | {"bad": 90.0}, "higher") == {"bad"}


def test_fewer_than_eight_nodes_have_no_outliers() -> None:
    cluster = FakeNodes(7, nodes={"n3": 0.1})
    assert verdicts(cluster.qualify(cluster.rules(["pairs"]))[0]) == {}


def test_slow_node_fails_with_value_median_and_peer() -> None:
    cluster = FakeNodes(8, nodes={"n3": 0.8}, paths={("n3", "n5"): 0.9})
    found, _ = cluster.qualify(cluster.rules(["pairs"]))
    assert verdicts(found) == {"n3": "fail"}
    assert check_of(found, "n3") == CheckResult(
        check="pairs_speed",
        verdict=Verdict.FAIL,
        value=0.8 * USUAL,
        median=USUAL,
        repeated=0.8 * USUAL,
        peer="n5",
        reason="80% of the median; measured again with nothing else running: 80% of good nodes",
    )
    assert found.result == "7 of 8 nodes qualify; failed: n3"


def test_slow_path_between_good_nodes_is_at_fault() -> None:
    cluster = FakeNodes(8, paths={("n2", "n6"): 0.6})
    found, _ = cluster.qualify(cluster.rules(["pairs"]))
    assert verdicts(found) == {}
    (path,) = found.paths
    assert (path.source, path.target, path.result.verdict) == ("n2", "n6", Verdict.FAIL)
    assert path.result.reason.endswith("with nothing else running: 60% of good nodes")
    assert found.has_failed


@pytest.mark.parametrize(("better", "limit"), [("higher", 0.9 * USUAL), ("lower", USUAL / 0.9)])
def test_slow_path_of_three_nodes_fails_alone(better: Better, limit: float) -> None:
    between = {("n0", "n1"), ("n1", "n0")}
    cluster = FakeNodes(3, paths=dict.fromkeys(between, 0.5), better=better)
    rules = cluster.rules(["pairs"], limits=[Limit(check="pairs_speed", value=limit)])
    found, _ = cluster.qualify(rules)
    assert verdicts(found) == {}
    assert {(p.source, p.target) for p in found.paths if p.result.verdict.has_failed} == between


def test_slow_node_of_three_fails_alone() -> None:
    cluster = FakeNodes(3, nodes={"n1": 0.5})
    rules = cluster.rules(["pairs"], limits=[Limit(check="pairs_speed", value=0.9 * USUAL)])
    assert verdicts(cluster.qualify(rules)[0]) == {"n1": "fail"}


def test_slow_path_does_not_acquit_a_slow_node() -> None:
    between = {("n0", "n1"), ("n1", "n0")}
    cluster = FakeNodes(8, nodes={"n7": 0.8}, paths=dict.fromkeys(between, 0.7))
    found, _ = cluster.qualify(cluster.rules(["pairs"]))
    assert verdicts(found) == {"n7": "fail"}
    failed = {(p.source, p.target) for p in found.paths if p.result.verdict.has_failed}
    assert failed == between


def test_node_slow_only_beside_others_is_degraded() -> None:
    cluster = FakeNodes(8, nodes={"n3": 0.8}, is_slow_only_in_rounds=True)
    found, _ = cluster.qualify(cluster.rules(["pairs"]))
    assert verdicts(found) == {"n3": "degraded"}
    assert not found.has_failed


def test_latency_above_the_others_fails() -> None:
    cluster = FakeNodes(8, nodes={"n3": 0.8}, better="lower")
    assert verdicts(cluster.qualify(cluster.rules())[0]) == {"n3": "fail"}


@pytest.mark.parametrize(
    ("limit", "baseline", "expected"),
    [
        (Limit(check="alone_speed", value=900.0), {}, {"n1": "fail"}),
        (Limit(check="alone_speed", value=850.0), {}, {}),
        (Limit(check="alone_speed", share=0.9), {"": 1000.0}, {"n1": "fail"}),
        (Limit(check="alone_speed", share=0.8), {"": 1000.0}, {"n1": "degraded"}),
        (Limit(check="alone_speed", share=0.8), {"": 1000.0, "n1": 890.0}, {}),
    ],
    ids=["below", "above", "below share", "below baseline", "own baseline"],
)
def test_limits_and_baseline_judge_few_nodes(
    limit: Limit, baseline: dict[str, float], expected: dict[str, str]
) -> None:
    cluster = FakeNodes(3, nodes={"n1": 0.88})
    rules = cluster.rules(
        ["alone"], limits=[limit], baseline={"alone_speed": baseline} if baseline else {}
    )
    assert verdicts(cluster.qualify(rules)[0]) == expected


def test_all_nodes_together_are_judged_by_limits() -> None:
    cluster = FakeNodes(3, nodes={"n1": 0.5})
    limits = [Limit(check="all_speed", value=2 * USUAL)]
    found, _ = cluster.qualify(cluster.rules(["all"], limits=limits))
    assert [each.verdict for each in found.all] == [Verdict.FAIL]
    assert found.result == "3 of 3 nodes qualify; all nodes together failed"


def test_failed_node_leaves_the_stages_after() -> None:
    cluster = FakeNodes(10, nodes={"n3": 0.5}, broken=["n5"])
    found, run = cluster.qualify(cluster.rules())
    assert verdicts(found) == {"n3": "fail", "n5": "not-measured"}
    assert check_of(found, "n3", "alone_speed").verdict is Verdict.FAIL
    assert check_of(found, "n3").reason == "excluded: it failed the stage alone"
    assert check_of(found, "n5", "alone_speed").reason == "exit code 1"
    assert [trial.parameters.get(WITHOUT) for trial in run[2:]] == [["n3", "n5"]] * 10


def test_node_without_a_good_peer_is_noted() -> None:
    cluster = FakeNodes(2, broken=["n1"])
    found, _ = cluster.qualify(cluster.rules(["alone", "pairs"]))
    assert check_of(found, "n0").reason == "no good node was left as a partner"
    assert check_of(found, "n1").reason == "excluded: it failed the stage alone"


@pytest.mark.parametrize("broken", [["n0", "n1", "n2"], ["n0", "n1"]])
def test_stages_without_enough_good_nodes_are_skipped(broken: list[str]) -> None:
    cluster = FakeNodes(3, broken=broken)
    found, run = cluster.qualify(cluster.rules())
    assert [trial.parameters[STAGE] for trial in run] == ["alone"]
    (together,) = found.all
    assert together.reason == "no node has passed all stages before it"


def test_suspects_are_repeated_beside_two_good_nodes() -> None:
    cluster = FakeNodes(9, nodes={"n0": 0.8, "n4": 0.8})
    _, run = cluster.qualify(cluster.rules(["pairs"]))
    assert run[-1].parameters == {
        STAGE: "pairs",
        ROUND: "suspects",
        REPEAT: [["n4", "n1", "n8"], ["n0", "n2", "n7"]],
    }


def test_worst_check_of_a_suspect_ranks_it() -> None:
    """Five nodes are below the limits of both checks, and n4 is the worst in the first."""
    first, second = ({f"n{n}": 80.0 for n in range(5)} | {"n5": 100.0, "n6": 100.0} for _ in "ab")
    first["n4"], second["n4"] = 50.0, 85.0
    infos = tuple(
        CheckInfo(check=name, stage="alone", nodes="alone", name=name, unit="", better="higher")
        for name in ("first", "second")
    )
    rules = Rules(
        stages=(StagePlan(name="alone", nodes="alone", workload="fake"),),
        checks=infos,
        limits=tuple(Limit(check=info.check, value=90.0) for info in infos),
    )
    measured = [
        Measurement(stage="alone", nodes=(n,), values={"first": first[n], "second": second[n]})
        for n in first
    ]
    suspects = Judgement(rules, measured).suspects(rules.stages[0])
    assert [each.nodes[0] for each in suspects[:4]] == ["n4", "n0", "n1", "n2"]


def test_trial_of_suspects_is_skipped_without_any() -> None:
    cluster = FakeNodes(8)
    _, run = cluster.qualify(cluster.rules())
    rounds = [each.parameters[ROUND] for each in run]
    assert rounds == [None, *range(1, 8), None]


def test_nodes_after_the_time_limit_are_not_measured() -> None:
    cluster = FakeNodes(4)
    found, run = cluster.qualify(cluster.rules(["alone", "all"]), time_limit_s=10.0)
    assert len(run) == 1
    assert [each.verdict for each in found.all] == [Verdict.NOT_MEASURED]
    assert [(stage.planned, stage.ended) for stage in found.stages] == [(1, 1), (1, 0)]


def test_path_within_its_limit_again_is_degraded() -> None:
    first, again = (FakeNodes(4, paths={("n0", "n1"): factor}) for factor in (0.85, 0.93))
    rules = first.rules(["pairs"], limits=[Limit(check="pairs_speed", value=0.9 * USUAL)])
    measured = [
        *(m for n in (1, 2, 3) for m in first.measure(Trial(n, {STAGE: "pairs", ROUND: n}))),
        *again.measure(Trial(4, {STAGE: "pairs", ROUND: SUSPECTS, REPEAT: [("n0", "n1", "n2")]})),
    ]
    (path,) = Judgement(rules, measured).qualification(first.names).paths
    assert (path.source, path.target, path.result.verdict) == ("n0", "n1", Verdict.DEGRADED)


def test_failed_path_measurement_does_not_accuse_its_nodes() -> None:
    cluster = FakeNodes(4)
    rules = cluster.rules(["pairs"])
    measured = [
        each
        for number in (1, 2, 3)
        for each in cluster.measure(Trial(number, {STAGE: "pairs", ROUND: number}))
        if each.nodes != ("n0", "n1")
    ]
    lost = FakeNodes(4, broken=["n0"]).measure(Trial(1, {STAGE: "pairs", ROUND: 1}))
    failed = [each for each in lost if "n0" in each.nodes][:1]
    found = Judgement(rules, [*measured, *failed]).qualification(cluster.names)
    assert verdicts(found) == {}
    assert [path.result.reason for path in found.paths] == ["exit code 1"]


def failing_between(cluster: FakeNodes, paths: set[frozenset[str]]) -> list[Measurement]:
    """Return the rounds of a cluster in which the tool fails on these paths."""
    return [
        replace(each, values={}, problem="exit code 1") if frozenset(each.nodes) in paths else each
        for number in range(1, len(cluster.names))
        for each in cluster.measure(Trial(number, {STAGE: "pairs", ROUND: number}))
    ]


def test_node_failing_on_most_paths_is_unmeasured() -> None:
    cluster = FakeNodes(10, nodes={"n5": 0.5}, paths={("n3", "n7"): 0.5})
    rules = cluster.rules(["pairs"])
    paths = {frozenset(("n3", name)) for name in ("n0", "n1", "n2", "n4", "n6")}
    judgement = Judgement(rules, failing_between(cluster, paths))
    assert "n3" not in {node for each in judgement.suspects(rules.stages[0]) for node in each.nodes}
    found = judgement.qualification(cluster.names)
    assert verdicts(found) == {"n3": "not-measured", "n5": "fail"}
    assert check_of(found, "n3").reason == "exit code 1"
    assert found.paths == ()


def test_broken_fabric_between_halves_accuses_no_node() -> None:
    cluster = FakeNodes(8)
    halves = cluster.names[:4], cluster.names[4:]
    paths = {frozenset((one, other)) for one in halves[0] for other in halves[1]}
    found = Judgement(cluster.rules(["pairs"]), failing_between(cluster, paths)).qualification()
    assert verdicts(found) == {}
    assert {frozenset((each.source, each.target)) for each in found.paths} == paths


def test_value_is_the_mean_over_repetitions() -> None:
    steps = [
        StepResult(
            number=number,
            name="read",
            repetition=number,
            attempt=1,
            folder="",
            is_measured=True,
            labels={NODE: "n0"},
            values={"alone_speed": value},
        )
        for number, value in enumerate((90.0, 100.0, 110.0), start=1)
    ]
    (found,) = measurements_of(steps, {STAGE: "alone", ROUND: None})
    assert (found.nodes, found.values) == (("n0",), {"alone_speed": 100.0})
