"""Serving topologies as targets on a cluster: a chart, and pods that an operator creates from a
custom resource. The operator runs or is dead."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import attempt
from tests.support.stack.controllers import controller
from tests.support.stack.expiry import end_by_deadline
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config
from tests.support.stack.topology import (
    FINALIZER,
    GROUP,
    LWS,
    OPERATORS,
    PLURAL,
    SGLANG_ROUTER,
    Manifest,
    engines,
    graph,
    install_operator,
    leader_workers,
    pool,
    remove_operator,
    router,
    service,
    sglang_router,
    use_release,
)

pytestmark = pytest.mark.cluster
VISITS_S = 500.0
"""Time limit for four trials, each of which starts the stack's pods."""


@pytest.fixture(scope="module")
def operator(cluster: Cluster, image: str) -> Iterator[None]:
    install_operator(cluster, image)
    yield
    remove_operator(cluster)


def _chart(folder: Path, manifests: list[Manifest]) -> None:
    """Write a chart with a hook and with pools whose sizes come from its values."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("{apiVersion: v2, name: pools, version: 0.1.0}")
    (folder / "values.yaml").write_text("{decode: 1}")
    text = yaml.safe_dump_all(manifests).replace("replicas: 77", "replicas: {{ .Values.decode }}")
    (folder / "templates" / "all.yaml").write_text(text)
    hook = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hook", "annotations": {"helm.sh/hook": "pre-install"}},
    }
    (folder / "templates" / "hook.yaml").write_text(yaml.safe_dump(hook))


@pytest.mark.parametrize("has_hooks", [False, True])
def test_chart_with_two_pools_is_measured(
    has_hooks: bool, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()
    parts = [*engines("prefill", image, 1), *engines("decode", image, 77)]
    _chart(runner.folder / "chart", [*parts, *router(image, "prefill", "decode")])

    def change(benchmark: Config) -> None:
        use_release(
            benchmark,
            url="http://router:8080",
            pools={
                "prefill": pool("prefill", 1, port=8000),
                "decode": pool("decode", 2, port=8000),
                "router": pool("router", 1),
            },
            **{"from": {"chart": "chart", "values": {"decode": 2}, "hooks": has_hooks}},
        )

    runner.change(change)
    ended = runner.run()
    assert ended.code in FINISHED, ended.errors
    assert "Deployment/router" in ended.errors
    assert ("hooks of the chart do not run: ConfigMap/hook" in ended.errors) != has_hooks
    assert runner.summary()["request_count"]["avg"] > 0


@pytest.fixture
def router_image(cluster: Cluster, tmp_path: Path) -> str:
    """Build an image with SGLang's router."""
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, and the image would need a registry")
    name = "localhost/aiperf-e2e-sglang-router:1"
    recipe = tmp_path / "Containerfile"
    recipe.write_text(SGLANG_ROUTER)
    cluster.add_image(name, recipe)
    return name


def test_router_of_sglang_spreads_over_two_pools(
    make_runner: Callable[[], Runner], image: str, router_image: str
) -> None:
    runner = make_runner()
    parts = [*engines("prefill", image, 1), *engines("decode", image, 1)]
    parts += sglang_router(router_image, "prefill", "decode")
    (runner.folder / "all.yaml").write_text(yaml.safe_dump_all(parts))

    def change(benchmark: Config) -> None:
        use_release(
            benchmark,
            url="http://router:8080",
            pools={
                "prefill": pool("prefill", 1, port=8000),
                "decode": pool("decode", 1, port=8000),
                "router": pool("router", 1, port=29000),
            },
            **{"from": {"manifests": "all.yaml"}},
        )

    runner.change(change)
    ended = runner.run()
    assert ended.code in FINISHED, ended.errors
    sources = runner.summary()["aiperf_svc"]["system"]["sources"]
    problems = {each["notes"][0]: each["problem"] for each in sources}
    assert problems == dict.fromkeys(("pool prefill", "pool decode", "pool router"), "")
    (pages,) = runner.artifacts.glob("*/server_metrics_export.json")
    metrics = json.loads(pages.read_bytes())["metrics"]
    tokens = [each["stats"]["total"] for each in metrics["vllm:generation_tokens"]["series"]]
    assert len(tokens) == 2
    # The router sends requests in turn; each mock server returns equally many tokens.
    assert min(tokens) > 0.5 * max(tokens)
    assert any(name.startswith("smg_") for name in metrics)


@pytest.fixture
def leader_worker_sets(cluster: Cluster) -> Iterator[None]:
    with controller(cluster, "lws"):
        yield


def test_leaders_and_workers_are_one_target(
    leader_worker_sets: None, cluster: Cluster, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()
    (runner.folder / "all.yaml").write_text(
        yaml.safe_dump_all(leader_workers("engines", image, groups=2, size=2))
    )

    def change(benchmark: Config) -> None:
        use_release(
            benchmark,
            url="http://leaders:8000",
            ready=[{"kind": "LeaderWorkerSet", "name": "engines", "condition": "Available"}],
            pools={"engines": {"labels": {f"{LWS}/name": "engines"}, "replicas": 4}},
            **{"from": {"manifests": "all.yaml"}},
        )

    runner.change(change)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        pods = cluster.objects("pods", "--all-namespaces", "-l", f"{LWS}/name=engines")
        ended = command.end()
    assert len(pods) == 4
    assert ended.code in FINISHED, ended.errors
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.left_of(runner.name) == []


def test_each_visit_of_a_release_has_new_pods(
    cluster: Cluster, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()
    for name, itl in (("a", "5ms"), ("b", "6ms")):
        parts = engines("decode", image, 1)
        (runner.folder / f"{name}.yaml").write_text(yaml.safe_dump_all(parts).replace("5ms", itl))

    def change(benchmark: Config) -> None:
        use_release(
            benchmark,
            url="http://decode:8000",
            pools={"decode": pool("decode", 1)},
            **{"from": {"manifests": "a.yaml"}},
        )
        benchmark["deployment"]["ttl"] = "1h"
        over = "deployment.target.from"
        sources = [{"manifests": f"{name}.yaml"} for name in "ab"]
        benchmark["experiment"] = {
            "product": {over: sources}, "blocks": {"over": over, "count": 1}
        }  # fmt: skip

    runner.change(change)
    seen, has_ended = set[str](), Event()

    def look() -> None:
        while not has_ended.is_set():
            pods = cluster.objects("pods", "--all-namespaces", "-l", "pool=decode")
            seen.update(each["metadata"]["uid"] for each in pods)

    with ThreadPoolExecutor(1) as pool_of_threads:
        looking = pool_of_threads.submit(look)
        command = (*runner.program, "run", runner.name, "--yes", "--ui", "plain")
        try:
            ended = attempt(
                command, environ=runner.environ, folder=runner.folder, timeout_s=VISITS_S
            )
        finally:
            has_ended.set()
        looking.result()
    assert ended.code in FINISHED, ended.errors
    assert "blocks: the target is a release" in ended.errors
    # Consecutive trials with the same value also have new pods.
    assert len(seen) == 4


def test_operators_pods_are_measured_and_removed(
    operator: None, cluster: Cluster, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()

    def change(benchmark: Config) -> None:
        _use_graph(benchmark, image)
        benchmark["load"] = {"request_rate": 5, "duration": "25s", "grace_period": "5s"}
        benchmark["events"] = [{"at": "12s", "do": "delete-pod", "pool": "engines"}]

    runner.change(change)
    ended = runner.run()
    assert ended.code in FINISHED, ended.errors
    assert "the cluster has Graph" in ended.errors
    (event,) = runner.summary()["aiperf_svc"]["events"]
    assert (event["is_verified"], event["problem"]) == (True, "")
    assert event["evidence"].startswith("replaced by graph-")
    assert cluster.objects(f"{PLURAL}.{GROUP}", "--all-namespaces") == []


def test_ttl_removes_objects_with_operator_finalizers(
    operator: None, cluster: Cluster, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()

    def change(benchmark: Config) -> None:
        _use_graph(benchmark, image)
        benchmark["load"]["duration"] = "4m"

    runner.change(change)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        (made,) = cluster.objects(f"{PLURAL}.{GROUP}", "--all-namespaces")
        assert FINALIZER in made["metadata"]["finalizers"]
        command.kill()
    end_by_deadline(cluster, runner.name, "namespace")
    assert cluster.objects(f"{PLURAL}.{GROUP}", "--all-namespaces") == []
    # The namespace was complete while the operator worked.
    output = cluster.kubectl("logs", "deployment/operator", "-n", OPERATORS)
    assert f"removes the finalizer of {made['metadata']['uid']} in an Active namespace" in output
    assert runner.gc().code == ExitCode.OK


def _use_graph(benchmark: Config, image: str) -> None:
    use_release(
        benchmark,
        url="http://engines:8000",
        ready=[{"kind": "Graph", "name": "graph", "condition": "Ready"}],
        pools={"engines": {"labels": {"graph": "graph"}, "replicas": 2, "port": 8000}},
        requests={"pods": 2, "cpu": "40m", "memory": "128Mi"},
        admit=[{"namespace": OPERATORS, "labels": {"pool": "operator"}}],
        **{"from": [{"object": graph(image)}, {"object": service("engines", 8000, GRAPH)}]},
    )


GRAPH = {"graph": "graph"}


def test_missing_type_is_refused_before_creation(
    cluster: Cluster, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()

    def change(benchmark: Config) -> None:
        _use_graph(benchmark, image)
        made = {**graph(image), "apiVersion": "nobody.example.com/v1"}
        benchmark["deployment"]["target"].update({"from": {"object": made}, "admit": []})

    runner.change(change)
    ended = runner.run()
    assert ended.code not in FINISHED
    assert "the cluster has no type Graph of nobody.example.com/v1" in ended.errors
    assert cluster.of_stack(runner.name) == []


def test_unready_target_is_named(make_runner: Callable[[], Runner], image: str) -> None:
    runner = make_runner()
    (runner.folder / "m.yaml").write_text(yaml.safe_dump_all(engines("decode", image, 1)))

    def change(benchmark: Config) -> None:
        use_release(
            benchmark,
            url="http://decode:8000",
            pools={"decode": pool("decode", 3)},
            ready_timeout="15s",
            **{"from": {"manifests": "m.yaml"}},
        )

    runner.change(change)
    ended = runner.run()
    assert ended.code == ExitCode.ERROR, ended.errors
    assert "pool decode: 1 of 3 pods ready" in ended.out


def test_dead_operator_is_named_with_its_finalizer(
    operator: None, cluster: Cluster, make_runner: Callable[[], Runner], image: str
) -> None:
    runner = make_runner()

    def change(benchmark: Config) -> None:
        _use_graph(benchmark, image)
        benchmark["deployment"]["delete_timeout"] = "20s"
        benchmark["load"]["duration"] = "15s"

    runner.change(change)
    flags = ("--yes", "--ui", "plain", "--json")
    with runner.start("run", runner.name, *flags) as command:
        command.wait_for(RUN)
        cluster.kubectl("scale", "deployment", "operator", "-n", OPERATORS, "--replicas=0")
        ended = command.end()
    try:
        assert ended.code == ExitCode.LEAKED, ended.errors
        assert any("Graph" in each for each in json.loads(ended.out)["left"])
        assert f"until the owner of the finalizer {FINALIZER} removes it" in ended.errors
        # Pods hold GPUs, so their removal must not wait for the operator.
        assert not cluster.objects("pods", "--all-namespaces", "-l", "graph=graph")
    finally:
        cluster.kubectl("scale", "deployment", "operator", "-n", OPERATORS, "--replicas=1")
    assert runner.gc().code == ExitCode.OK
    assert cluster.left_of(runner.name) == []
