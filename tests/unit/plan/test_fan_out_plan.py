"""The stack of an experiment in Jobs: which shapes share one, its pods, and rejected configs."""

from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.cluster.preflight.quotas import quota_requests
from aiperf_svc.config.base import MINUTE_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.index_pods import COLLECTION_S, LAUNCH_DIR, server_of
from aiperf_svc.plan.network import Range, Rule
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.previews.review import facts
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import index_shapes, shapes_of, without_trials
from aiperf_svc.workloads.stacks import all_shapes
from tests.support.plans import to_plan

ARGS = "deployment.target.args"
GPU = "deployment.target.gpu"


def benchmark(experiment: dict[str, Any] | None = None, **target: Any) -> dict[str, Any]:
    return {
        "name": "variants",
        "endpoint": {"url": "http://target", "model": "m", "streaming": True},
        "load": {"duration": "30s", "concurrency": 4},
        "experiment": {
            "product": {ARGS: [["--ttft", "1ms"], ["--ttft", "2ms"], ["--ttft", "3ms"]]},
            "parallel": 2,
            "fan_out": "jobs",
            **(experiment or {}),
        },
        "deployment": {"target": {"kind": "mock", **target}},
    }


def planned(data: dict[str, Any], **options: Any) -> StackPlan:
    config = parse_benchmark(data, "the test")
    return to_plan(config, stack="bench", version="1.2.3", **options)


def test_shapes_differing_in_arguments_share_a_job() -> None:
    env = "deployment.target.env"
    plan = planned(benchmark({"zip": {f"{env}.A": ["1", "2"], f"{env}.B": ["x", "y"]}}))
    (job,) = plan.jobs
    assert job.shapes == (1, 2, 3, 4, 5)
    assert job.pod.replicas == 2
    (collector,) = plan.services
    assert collector.env["AIPERF_JOBS"] == '{"index-1-bench":[1,2,3,4,5]}'


def test_collector_and_indexes_know_the_command_line() -> None:
    plan = planned(benchmark(), run=RunValues(cli_command="aiperf-svc run bench"))
    pods = (*plan.services, *(job.pod for job in plan.jobs))
    assert [pod.env["AIPERF_CLI_COMMAND"] for pod in pods] == ["aiperf-svc run bench"] * 2


def test_shapes_with_other_pods_have_separate_jobs() -> None:
    command = {"kind": "custom", "image": "server:1", "command": ["serve"]}
    types = [{"type": "H100"}, {"type": "A100"}]
    plan = planned(benchmark({"product": {GPU: types, ARGS: [["1"], ["2"]]}}, **command))
    assert [job.shapes for job in plan.jobs] == [(1, 2), (3, 4)]
    selectors = [job.pod.placement.node_selector for job in plan.jobs]
    assert selectors == [{"nvidia.com/gpu.product": "H100"}, {"nvidia.com/gpu.product": "A100"}]
    assert plan.totals.gpus == 2
    assert [job.pod.name for job in plan.jobs] == ["index-1", "index-2"]


def test_totals_count_the_largest_parallel_jobs() -> None:
    command = {"kind": "custom", "image": "server:1", "command": ["serve"]}
    sizes = {"deployment.target.memory": ["1Gi", "3Gi", "2Gi"]}
    plan = planned(benchmark({"product": sizes, "parallel": 1}, **command))
    assert [job.pod.replicas for job in plan.jobs] == [1, 1, 1]
    assert plan.at_once == {"deadline": 1, "collector": 1, "index-1": 0, "index-2": 1, "index-3": 0}
    assert plan.totals.pods == quota_requests(plan)["pods"] == 3
    others = sum(
        pod.total.memory_bytes for pod in plan.pods if pod.name in ("deadline", "collector")
    )
    assert plan.totals.memory_bytes == others + plan.jobs[1].pod.total.memory_bytes
    for limit, pods in ((2, 4), (3, 5), ("auto", 5)):
        assert (
            planned(benchmark({"product": sizes, "parallel": limit}, **command)).totals.pods == pods
        )


def test_indexes_follow_the_priority() -> None:
    wanted = {"priority": [{ARGS: ["--ttft", "3ms"]}]}
    first = planned(benchmark(wanted))
    assert first.jobs[0].shapes == (1, 2, 3)
    config = parse_benchmark(benchmark(wanted), "the test")
    assert index_shapes(config)[0].parameters == {ARGS: ["--ttft", "3ms"]}


def test_index_pod_requests_services_and_server() -> None:
    data = benchmark(cpu="3", memory="5Gi")
    data["deployment"]["pods"] = {
        "control": {"cpu": "100m", "memory": "256Mi"},
        "worker": {"cpu": "200m", "memory": "256Mi"},
        "record-processor": {"cpu": "300m", "memory": "256Mi"},
    }
    data["workers"] = {"max": 1}
    (job,) = planned(data).jobs
    assert job.pod.requests.cpu_millis == 600
    assert job.pod.total.cpu_millis == 3600
    assert job.pod.total.memory_bytes == (5 * 1024 + 768) * 2**20
    setup, server = job.pod.preparations
    assert (setup.is_sidecar, server.is_sidecar) == (False, True)
    assert server.command == (f"{LAUNCH_DIR}/server_launcher", LAUNCH_DIR, "30")


def test_server_secrets_are_references_in_their_container_only() -> None:
    command: dict[str, Any] = {"kind": "custom", "image": "server:1", "command": ["serve"]}
    plan = planned(benchmark(**command, secret_env={"HF_TOKEN": "hubToken"}))
    setup, server = plan.jobs[0].pod.preparations
    assert server.secret_env["HF_TOKEN"].key == "hubToken"
    assert "HF_TOKEN" not in plan.jobs[0].pod.secret_env | setup.secret_env
    assert plan.secret_keys["target"] == ("hubToken",)
    assert "curve" not in {volume.name for volume in server.volumes}


def test_root_server_of_indexes_needs_pod_security_baseline() -> None:
    command: dict[str, Any] = {"kind": "custom", "image": "server:1", "command": ["serve"]}
    plan = planned(benchmark(**command, run_as_root=True, writable=True))
    assert plan.pod_security == "baseline"
    assert "Pod Security baseline: index-1 runs as root" in plan.notes
    assert dict(facts(plan))["writable root"] == "index-1"


def test_retries_are_index_attempts_with_deadline() -> None:
    data = benchmark({"retries": 2})
    data["deployment"] |= {"ready_timeout": "2m"}
    data["deployment"]["target"]["ready_timeout"] = "3m"
    (job,) = planned(data).jobs
    assert job.retries == 2
    assert 60 * 5 + 30 < job.deadline_s < 60 * 10


def test_ending_index_has_time_to_upload() -> None:
    (job,) = planned(benchmark()).jobs
    assert job.pod.grace_s == COLLECTION_S


def test_ttl_must_cover_consecutive_loads() -> None:
    data = benchmark({"parallel": 1})
    data["deployment"] |= {"ttl": "13m", "ready_timeout": "5m"}
    with pytest.raises(ConfigError, match=r"3 indexes, with 120 s to collect .* take up to 5m"):
        planned(data)
    data["experiment"]["parallel"] = "auto"
    assert planned(data).times.load == MINUTE_NS


def test_indexes_reach_the_collector_and_nothing_else() -> None:
    plan = planned(benchmark())
    (index,) = (policy for policy in plan.policies if policy.name == "index")
    assert [rule.ports for rule in index.egress] == [(5557,)]
    assert index.ingress == ()


def test_indexes_reach_the_mirror_of_a_dataset() -> None:
    data = benchmark()
    data["dataset"] = {
        "kind": "sharegpt", "public": "sharegpt", "url": "http://10.0.0.1:9000/a.json"
    }  # fmt: skip
    (found,) = (each for each in planned(data).policies if each.name == "dataset")
    assert found.components == ("index-1",)
    assert found.egress == (Rule((Range("10.0.0.1/32"),), (9000,)),)


def test_drains_wait_for_the_collector() -> None:
    plan = planned(benchmark())
    assert plan.budget is not None
    assert plan.budget.hold is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "custom", "image": "server:1"}, "deployment.target.command is needed"),
        ({"replicas": 2}, "deployment.target.replicas is 2"),
        ({"args": ["--key=$(KEY)"]}, r"references \$\(NAME\)"),
        ({"placement": {"host_network": True}}, "placement.host_network"),
    ],
)
def test_servers_unsupported_in_jobs_are_refused(change: dict[str, Any], message: str) -> None:
    data = benchmark({"product": {"deployment.target.env.A": ["1", "2"]}}, **change)
    with pytest.raises(ConfigError, match=f"experiment.fan_out: jobs.*{message}"):
        planned(data)


def test_a_server_outside_the_stack_is_refused() -> None:
    data = benchmark({"product": {"endpoint.url": ["http://a:1", "http://b:1"]}}, kind="none")
    with pytest.raises(ConfigError, match="the server is in the pods of the Jobs"):
        planned(data)


def test_pages_of_others_are_refused() -> None:
    data = benchmark()
    data["telemetry"] = {"gpu_telemetry": ["http://node-1:9400/metrics"]}
    with pytest.raises(ConfigError, match="telemetry has http://node-1:9400/metrics"):
        planned(data)
    data["telemetry"] = {"server_metrics": ["http://target:9000/metrics"]}
    assert planned(data).jobs


def test_a_tool_on_ranks_is_refused() -> None:
    data = {
        "name": "disks",
        "workload": {"kind": "fio"},
        "experiment": {"product": {"deployment.pods.rank.cpu": [1, 2]}, "fan_out": "jobs"},
    }
    with pytest.raises(ConfigError, match="measures inference servers"):
        planned(data)


@pytest.mark.parametrize("name", ["x" * 20_000, "é" * 10_000])
def test_config_beyond_config_map_is_refused(name: str) -> None:
    rows = [{ARGS: [f"--name={number:04}{name}"]} for number in range(60)]
    data = benchmark({"explicit": rows, "product": {}, "parallel": 60})
    with pytest.raises(ConfigError, match="a ConfigMap holds 1,000,000"):
        planned(data)


def test_server_of_each_shape_has_its_own_arguments() -> None:
    config = parse_benchmark(benchmark(), "the test")
    configs = [each.configs[0] for each in index_shapes(config)]
    servers = [server_of(each) for each in configs if isinstance(each, BenchmarkConfig)]
    assert [each.command[-1] for each in servers] == ["1ms", "2ms", "3ms"]
    assert servers[0].command[:2] == ("python", "-P")
    assert "127.0.0.1" in servers[0].command


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ({"fan_out": "pods"}, "fan_out"),
        ({"fan_out": "stacks", "parallel": 101}, "101 stacks at the same time"),
        ({"parallel": 10_001}, "from 1 to 10000"),
        (
            {
                "product": {},
                "parallel": 1,
                "search": {"parameter": "load.concurrency", "from": 1, "to": 9},
            },
            "leave out fan_out",
        ),
    ],
)
def test_unsupported_experiments_are_refused(experiment: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(benchmark(experiment), "the test")


def test_finished_trials_are_in_no_index() -> None:
    config = parse_benchmark(benchmark(), "the test")
    left = without_trials(shapes_of(config, "cluster"), (1, 3))
    plan = planned(benchmark(), known=all_shapes(config, left))
    (job,) = plan.jobs
    assert job.shapes == (1,)
    found = index_shapes(
        parse_benchmark(yaml.safe_load(plan.files["config.yaml"]), "the collector")
    )
    assert [shape.trials[0].number for shape in found] == [2]


def test_indexes_get_target_and_page_keys() -> None:
    data = benchmark()
    data["endpoint"]["api_key_env"] = "MY_KEY"
    data["telemetry"] = {
        "server_metrics": ["http://target:8000/metrics"],
        "key_env": "MY_PAGES_KEY",
    }
    plan = planned(data)
    secret_env = plan.jobs[0].pod.secret_env
    assert {name: at.key for name, at in secret_env.items()} == {
        TARGET_KEY_ENV: "targetApiKey",
        PAGES_KEY_ENV: "pagesKey",
    }
    (written,) = (text for text in plan.files.values() if "server_metrics" in text)
    assert f"key_env: {PAGES_KEY_ENV}" in written
    assert "MY_" not in written
