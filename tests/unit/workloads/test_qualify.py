"""The kind `qualify`: trials, steps of each stage, checks of the config."""

from typing import Any

import pytest
from msgspec import structs

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.qualify.judgement import GOOD_ALONE, MAX_SUSPECTS
from aiperf_svc.core.qualify.measurements import Limit, Measurement
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.run_id import non_defaults
from aiperf_svc.workloads.qualify.stage_rules import effective_limits, rules_of
from aiperf_svc.workloads.qualify.workload import Qualify
from aiperf_svc.workloads.registry import parse_benchmark, workload_of
from aiperf_svc.workloads.steps import Rank, Step
from aiperf_svc.workloads.trials import trial_configs
from tests.support.tool_runs import make_ranks

FIO = {"nodes": "alone", "workload": {"kind": "fio", "size": "64Mi"}}
IPERF = {"nodes": "pairs", "workload": {"kind": "iperf", "duration": "5s"}}
NCCL = {"nodes": "all", "workload": {"kind": "nccl", "env": {"NCCL_ALGO": "RING"}}}
PYTORCH = {"nodes": "all", "workload": {"kind": "pytorch"}}
UCX = {"nodes": "pairs", "workload": {"kind": "ucx", "test": "tag_lat"}}
WORKLOAD = Qualify()


def data(*stages: dict[str, Any], count: int = 4, **spec: Any) -> dict[str, Any]:
    return {
        "workload": {"kind": "qualify", "stages": list(stages), **spec},
        "deployment": {"ranks": {"pairs": "rounds", "count": count}},
    }


def parsed(*stages: dict[str, Any], count: int = 4, **spec: Any) -> WorkloadConfig[Any]:
    config = parse_benchmark(data(*stages, count=count, **spec), "")
    assert isinstance(config, WorkloadConfig)
    return config


def steps(config: WorkloadConfig[Any], ranks: tuple[Rank, ...], **spec: Any) -> tuple[Step, ...]:
    workload = config.workload.model_copy(update=spec)
    return WORKLOAD.planned_steps(config.model_copy(update={"workload": workload}), ranks)


def problems(*stages: dict[str, Any], **spec: Any) -> list[str]:
    return [each.line({}) for each in WORKLOAD.config_problems(parsed(*stages, **spec))]


def test_trials_are_stages_rounds_and_suspects() -> None:
    trials = [each.trial.parameters for each in trial_configs(parsed(FIO, IPERF, NCCL))]
    assert [(each["workload.stage"], each["workload.round"]) for each in trials] == [
        ("fio", None),
        ("fio", "suspects"),
        ("iperf", 1),
        ("iperf", 2),
        ("iperf", 3),
        ("iperf", "suspects"),
        ("nccl", None),
    ]


def test_pairs_of_one_named_node_are_refused() -> None:
    config = data(IPERF)
    config["deployment"]["ranks"] = {"pairs": "rounds", "nodes": ["node-0"]}
    with pytest.raises(ConfigError, match="pairs rounds needs count, or the names of two or more"):
        parse_benchmark(config, "")


def test_saved_config_is_read_again_unchanged() -> None:
    config = parsed(FIO, IPERF)
    again = parse_benchmark(config.model_dump(mode="json", by_alias=True), "")
    assert again == config
    assert workload_of(again).config_problems(again) == []


def test_config_without_defaults_is_read_in_pods() -> None:
    config = parsed(FIO, IPERF, NCCL)
    assert parse_benchmark(non_defaults(config), "") == config


def test_single_nodes_run_the_tool_in_parallel() -> None:
    found = steps(parsed(FIO), make_ranks(3), stage="fio", without=("node-1",))
    assert [(step.name, step.group, step.is_measured) for step in found] == [
        ("write files on node-0", 1, False),
        ("write files on node-2", 1, False),
        ("read on node-0", 2, True),
        ("read on node-2", 2, True),
    ]
    assert found[2].labels == {"test": "read", "node": "node-0"}
    assert found[2].headline == "fio_iops"


def test_round_measures_its_pairs_in_both_directions() -> None:
    found = steps(parsed(IPERF), make_ranks(4), stage="iperf", round=1)
    assert [(step.name, step.group) for step in found] == [
        ("node-0 to node-3", 1),
        ("node-1 to node-2", 1),
        ("node-3 to node-0", 2),
        ("node-2 to node-1", 2),
    ]
    assert found[2].labels["from"] == "node-3"


def test_round_pairs_the_same_nodes_in_new_pods() -> None:
    first = make_ranks(4)
    again = tuple(structs.replace(rank, node=f"node-{(rank.number + 1) % 4}") for rank in first)
    for number in (1, 2, 3):
        one, other = (
            steps(parsed(UCX), rates, stage="ucx", round=number) for rates in (first, again)
        )
        assert [step.name for step in one] == [step.name for step in other]


@pytest.mark.parametrize(
    ("problem", "unnecessary"), [("", {2}), ("exit code 1", {2, 3, 4})], ids=["good", "failed"]
)
def test_trials_without_enough_good_nodes_are_unnecessary(
    problem: str, unnecessary: set[int]
) -> None:
    config = parsed(FIO, IPERF, count=2)
    trials = [each.trial for each in trial_configs(config)]
    measured = (
        Measurement(stage="fio", nodes=("node-0",), values={"fio_iops": 1.0}),
        Measurement(
            stage="fio",
            nodes=("node-1",),
            values={} if problem else {"fio_iops": 1.0},
            problem=problem,
        ),
    )
    ended = [TrialRow(TrialOutcome(trials[0], "done", "", None), None, measured)]
    assert WORKLOAD.unnecessary_trials(config, trials, ended, is_local=False) == unnecessary
    assert WORKLOAD.unnecessary_trials(config, trials, [], is_local=False) == set()


def test_round_leaves_out_failed_nodes() -> None:
    found = steps(parsed(UCX), make_ranks(4), stage="ucx", round=1, without=("node-3",))
    assert [step.name for step in found] == ["node-1 to node-2"]


def test_parallel_nodes_are_limited_as_configured() -> None:
    config = parsed(FIO, max_nodes_at_once=2)
    found = steps(config, make_ranks(4), stage="fio")
    assert [step.group for step in found if step.is_measured] == [3, 3, 4, 4]


def test_suspects_are_measured_one_after_the_other() -> None:
    suspects = (("node-2", "node-0", "node-1"),)
    found = steps(parsed(UCX), make_ranks(4), stage="ucx", round="suspects", repeat=suspects)
    assert [(step.name, step.group) for step in found] == [
        ("node-2 to node-0", 0),
        ("node-2 to node-1", 0),
        ("node-0 to node-1", 0),
    ]


def test_planned_suspects_alone_are_single_nodes() -> None:
    found = steps(parsed(FIO), make_ranks(4), stage="fio", round="suspects")
    assert [step.ranks for step in found] == [(0,)] * 2 * (MAX_SUSPECTS + GOOD_ALONE)
    once = steps(parsed(FIO), make_ranks(4), stage="fio")
    assert {step.timeout_ns for step in found} == {step.timeout_ns for step in once}


def test_torchrun_counts_ranks_that_are_left() -> None:
    (step,) = steps(parsed(PYTORCH), make_ranks(3), stage="pytorch", without=("node-0",))
    argvs = [command.argv for command in step.commands]
    assert [argv[argv.index("--node_rank") + 1] for argv in argvs] == ["0", "1"]
    assert {argv[argv.index("--nnodes") + 1] for argv in argvs} == {"2"}
    assert {argv[argv.index("--master_addr") + 1] for argv in argvs} == {"10.0.0.1"}


@pytest.mark.parametrize(("nodes", "program"), [("alone", "python3"), ("all", "torchrun")])
def test_programs_follow_the_number_of_ranks(nodes: str, program: str) -> None:
    needed = WORKLOAD.tools_of(parsed({**PYTORCH, "nodes": nodes}))
    assert [tool.name for tool in needed] == [program]


def test_all_nodes_run_command_with_stage_environment() -> None:
    (step,) = steps(parsed(NCCL), make_ranks(3), stage="nccl", without=("node-1",))
    assert (step.name, step.ranks) == ("all_reduce on all nodes", (0, 2))
    assert step.commands[0].env["NCCL_ALGO"] == "RING"


def test_tool_of_any_size_fits_pairs() -> None:
    stage = {"nodes": "pairs", "workload": {"kind": "nccl"}}
    found = steps(parsed(stage), make_ranks(2), stage="nccl", round=1)
    assert [(step.name, step.labels["to"]) for step in found] == [("node-0 to node-1", "node-1")]


@pytest.mark.parametrize(("env", "algorithm"), [({}, "RING"), ({"NCCL_ALGO": "TREE"}, "TREE")])
def test_pairs_of_nccl_measure_by_ring(env: dict[str, str], algorithm: str) -> None:
    stage = {"nodes": "pairs", "workload": {"kind": "nccl", "env": env}}
    (step,) = steps(parsed(stage), make_ranks(2), stage="nccl", round=1)
    (command,) = step.commands
    assert command.env["NCCL_ALGO"] == algorithm
    assert "NCCL_ALGO" in command.argv


def test_limits_of_other_hardware_are_ignored() -> None:
    limits = [
        {"check": "iperf_bandwidth", "min": "9Gbit/s"},
        {"check": "iperf_bandwidth", "min": "90Gbit/s", "gpu": "NVIDIA-H100-*"},
        {"check": "iperf_rtt", "max": "1ms", "fabric": "roce"},
    ]
    plain = rules_of(parsed(IPERF, limits=limits, gpu="NVIDIA-A100", fabric="ib"))
    assert plain.limits == (Limit(check="iperf_bandwidth", value=9e9),)
    large = rules_of(parsed(IPERF, limits=limits, gpu="NVIDIA-H100-80GB-HBM3", fabric="roce"))
    assert [limit.value for limit in large.limits] == [9e9, 9e10, 1000.0]
    assert [info.check for info in large.checks] == ["iperf_bandwidth", "iperf_rtt"]


@pytest.mark.parametrize(
    ("stages", "spec", "expected"),
    [
        (
            [{**FIO, "workload": {"kind": "openfoam", "nodes": 3, "processes": 3}}],
            {},
            "workload.stages.0.nodes: 'alone': openfoam measures 3 nodes at a time, and does not",
        ),
        ([{**IPERF, "nodes": "alone"}], {}, "workload.stages.0.nodes: 'alone': iperf measures 2"),
        (
            [{**FIO, "workload": {"kind": "fio", "workers": 3}}],
            {},
            "workload.stages.0.workload.workers: the number of ranks follows",
        ),
        ([{**IPERF, "judge": ["rrt"]}], {}, "'rrt' is not a metric of iperf; did you mean rtt"),
        (
            [{**IPERF, "judge": ["bandwidth", "pmtu"]}],
            {},
            "workload.stages.0.judge: no direction of 'pmtu' is better, as judging needs; expected "
            "bandwidth, bandwidth_sent, retransmits, rtt",
        ),
        (
            [
                {
                    "nodes": "alone",
                    "workload": {
                        "kind": "command",
                        "command": ["true"],
                        "metrics": {"heat": {"unit": "C", "pattern": "(.)"}},
                    },
                }
            ],
            {},
            "workload.stages.0.judge: no direction of 'heat' is better, as judging needs; expected "
            "one with `better`",
        ),
        (
            [IPERF],
            {"limits": [{"check": "iperf_bandwith", "min": 1}]},
            "workload.limits.0.check: 'iperf_bandwith' is not a check of these stages; did you "
            "mean iperf_bandwidth",
        ),
        (
            [IPERF],
            {"limits": [{"check": "iperf_bandwidth", "max": 1}]},
            "workload.limits.0.max: higher iperf_bandwidth is better",
        ),
        (
            [IPERF],
            {"limits": [{"check": "iperf_bandwidth", "min": "9 apples"}]},
            "workload.limits.0: iperf_bandwidth: ",
        ),
        (
            [IPERF],
            {"limits": [{"check": "iperf_bandwidth", "min": 1, "gpu": "NVIDIA-H100-*"}]},
            "workload.limits.0.gpu: 'NVIDIA-H100-*': whether it applies is unknown, as the gpu of "
            "the nodes is; set workload.gpu, or nvidia.com/gpu.product in deployment.placement",
        ),
        (
            [IPERF],
            {"limits": [{"check": "iperf_bandwidth", "min": 1, "fabric": "roce"}]},
            "workload.limits.0.fabric: 'roce': whether it applies is unknown, as the fabric of the "
            "nodes is; set workload.fabric",
        ),
        (
            [IPERF],
            {
                "limits": [{"check": "iperf_bandwidth", "min": 1, "gpu": "NVIDIA-H100-*"}],
                "gpu": "NVIDIA-GB200",
            },
            "workload.limits: none of 1 applies to gpu 'NVIDIA-GB200'",
        ),
        (
            [IPERF],
            {"limits": [{"check": "iperf_rtt", "of_baseline": 0.9}]},
            "workload.limits: all that apply are of_baseline, without a baseline of these checks: "
            "give one (qualify --baseline FOLDER)",
        ),
        (
            [IPERF],
            {"baseline": {"fio_iops": {"": 1.0}}},
            "workload.baseline: 'fio_iops' is not a check of these stages",
        ),
    ],
)
def test_invalid_qualification_settings_are_named(
    stages: list[dict[str, Any]], spec: dict[str, Any], expected: str
) -> None:
    (problem,) = problems(*stages, **spec)
    assert expected in problem


def test_limit_of_the_baseline_applies_with_one() -> None:
    limits = [
        {"check": "iperf_bandwidth", "of_baseline": 0.9},
        {"check": "iperf_rtt", "of_baseline": 0.9},
    ]
    config = parsed(IPERF, limits=limits, baseline={"iperf_rtt": {"": 100.0}})
    assert WORKLOAD.config_problems(config) == []
    assert [limit.check for limit in effective_limits(config)] == ["iperf_rtt"]


@pytest.mark.parametrize(
    ("stages", "spec", "expected"),
    [
        ([IPERF, IPERF], {}, "two are called iperf; give each a `name`"),
        (
            [{**IPERF, "workload": {"kind": "iperf", "duraton": "5s", "streams": "x"}}],
            {},
            r"^workload.stages.0.workload: streams: 'x': expected a whole number; duraton: unknown "
            r"key \(value '5s'\); did you mean duration\?$",
        ),
        ([{**IPERF, "workload": {"kind": "qualify"}}], {}, "another kind than qualify"),
        ([{**IPERF, "workload": {"kind": "iperf", "image": "x"}}], {}, "image belongs to all"),
        ([IPERF], {"limits": [{"check": "iperf_bandwidth"}]}, "expected one of min"),
    ],
)
def test_broken_stages_are_refused(
    stages: list[dict[str, Any]], spec: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        parsed(*stages, **spec)


def test_qualification_needs_rounds_of_counted_nodes() -> None:
    single = data(IPERF)
    single["deployment"] = {}
    config = parse_benchmark(single, "")
    (problem,) = workload_of(config).config_problems(config)
    assert "deployment.ranks.pairs: 'one': expected rounds" in problem.line({})


@pytest.mark.parametrize("keys", [{"repetitions": 2}, {"order": "shuffled"}])
def test_experiment_keys_that_change_its_trials_are_refused(keys: dict[str, Any]) -> None:
    config = parse_benchmark({**data(IPERF), "experiment": keys}, "")
    (problem,) = workload_of(config).config_problems(config)
    assert f"experiment.{next(iter(keys))}: a qualification has trials" in problem.line({})
