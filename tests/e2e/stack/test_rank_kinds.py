"""Every kind whose tool runs on CPUs, in the image that users build. The results match the tool's
output, and the couriers' measurements agree."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.support.documented import yaml_blocks
from tests.support.recording import ROOT
from tests.support.stack.rank_runs import (
    Results,
    make_small,
    measure,
    measured_step,
    nodes_of,
    stdout_of,
    units,
    values,
)
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster
FRAMES = 1.3
"""Upper bound for wire bytes per payload byte, with headers and acknowledgements."""

MakeKind = Callable[..., Runner]


@pytest.fixture
def make_kind(make_runner: Callable[[], Runner], rank_image: Callable[[str], str]) -> MakeKind:
    """Return a function that makes a stack from a committed file with changed workload keys."""

    def make(committed: str, containerfile: str, **workload: Any) -> Runner:
        runner = make_runner()
        runner.environ["AIPERF_WORKLOAD_IMAGE"] = rank_image(containerfile)
        runner.use(committed)
        runner.change(lambda benchmark: benchmark["workload"].update(workload))
        runner.change(lambda benchmark: benchmark.update(repetitions=1))
        runner.change(make_small())
        return runner

    return make


def seen_bytes(results: Results) -> tuple[int, int]:
    """Return the bytes that the interfaces of both ranks sent during the measured step."""
    first, second = measured_step(results)["witnesses"]
    assert first["interface_rx_bytes"] == pytest.approx(second["interface_tx_bytes"], rel=0.05)
    return first["interface_tx_bytes"], second["interface_tx_bytes"]


@pytest.mark.two_nodes
@pytest.mark.parametrize(
    ("containerfile", "keys", "tool"),
    [
        pytest.param("mpi-pingpong/Containerfile", {}, "mpi4py", marks=pytest.mark.gate),
        ("mpi-pingpong/Containerfile.imb", {"program": "imb", "mpi": "intel-mpi"}, "IMB-MPI1"),
    ],
    ids=["mpi4py", "imb"],
)
def test_mpi_messages_go_between_two_nodes(
    cluster: Cluster, make_kind: MakeKind, containerfile: str, keys: dict[str, str], tool: str
) -> None:
    runner = make_kind("bench-mpi", containerfile, maxlog=18, iterations=200, **keys)
    results = measure(cluster, runner)
    assert results["tools"][0].startswith(tool)
    assert nodes_of(results["steps"]) == cluster.nodes()
    assert units(results) == {"latency": "us", "bandwidth": "bytes/s"}
    (table,) = results["tables"]
    rows = table["table"]["rows"]
    assert [row[0] for row in rows] == [0, *(2**power for power in range(19))]
    # The results match the tool's output.
    (printed,) = stdout_of(runner, "001-*/rank-0/command-*")
    lines = [line.split() for line in printed.splitlines()]
    (time_us,) = (float(line[2]) for line in lines if len(line) == 4 and line[0] == "0")
    assert values(results)["latency"] == time_us
    assert values(results)["bandwidth"] == max(row[3] for row in rows)
    # Each rank sent every message once, plus some for warmup.
    payload = sum(size * repetitions for size, repetitions, *_ in rows)
    for sent in seen_bytes(results):
        assert payload < sent < 2 * FRAMES * payload


@pytest.mark.two_nodes
def test_openfoam_solves_the_cavity_on_two_nodes(cluster: Cluster, make_kind: MakeKind) -> None:
    runner = make_kind("bench-openfoam", "openfoam/Containerfile", size="XS", processes=2)
    runner.change(make_small(memory="512Mi"))
    results = measure(cluster, runner)
    assert results["tools"][0].startswith("OpenFOAM 1912")
    assert nodes_of(results["steps"]) == cluster.nodes()
    found, step = values(results), measured_step(results)
    assert results["facts"]["cells"] == "8000"
    assert found["pressure_iterations"] == 20 * 2 * 250
    assert found["rate"] == pytest.approx(8000 / found["step_time"])
    assert 20 * found["step_time"] == pytest.approx(found["solver_time"], rel=0.5)
    # The couriers measured at least this CPU time, and the same duration of the step.
    assert sum(each["cpu_ns"] for each in step["witnesses"]) / 1e9 > found["solver_time"]
    assert found["clock_time"] <= step["duration_s"] + 1
    assert min(seen_bytes(results)) > 2**20


@pytest.mark.two_nodes
@pytest.mark.parametrize(
    ("test", "headline", "unit"), [("tag_lat", "latency", "us"), ("tag_bw", "bandwidth", "bit/s")]
)
def test_ucx_sends_each_message_size_between_two_nodes(
    cluster: Cluster, make_kind: MakeKind, test: str, headline: str, unit: str
) -> None:
    keys = {"test": test, "max_size": "256Ki", "iterations": 500}
    results = measure(cluster, make_kind("bench-ucx", "ucx/Containerfile", **keys))
    assert results["tools"][0].startswith("UCX")
    assert nodes_of(results["steps"]) == cluster.nodes()
    assert units(results)[headline] == unit
    assert "tcp" in results["facts"]["transports"]
    (table,) = results["tables"]
    rows = table["table"]["rows"]
    assert [row[0] for row in rows] == [4**power for power in range(10)]
    # The client sends 500 messages of up to 64 KiB, 50 of 256 KiB, and some for warmup.
    payload = sum(size * (500 if size <= 2**16 else 50) for size, *_ in rows)
    assert payload < max(seen_bytes(results)) < 2 * FRAMES * payload


@pytest.mark.two_nodes
def test_fio_adds_the_volumes_of_two_nodes(cluster: Cluster, make_kind: MakeKind) -> None:
    keys = {"rw": "randread", "bs": "4Ki", "iodepth": 4, "size": "64Mi", "runtime": "5s"}
    runner = make_kind("bench-fio", "fio/Containerfile", ramp="1s", **keys)
    runner.change(lambda benchmark: benchmark["workload"].pop("suite"))
    volume = {"kind": "empty-dir", "size": "1Gi"}
    runner.change(lambda benchmark: benchmark["deployment"]["ranks"].update(volume=volume))
    results = measure(cluster, runner)
    assert results["tools"][0].startswith("fio-3.")
    assert nodes_of(results["steps"]) == cluster.nodes()
    found = values(results)
    assert units(results)["iops"] == "ops/s"
    assert found["bandwidth"] == pytest.approx(4096 * found["iops"], rel=0.01)
    assert found["read_latency_p50"] <= found["read_latency_p99"] <= found["read_latency_p999"]
    # Little's law: reads in flight equal the read rate times the latency. The latency excludes
    # fio's own work between two reads of a job.
    in_flight = found["iops"] * found["read_latency"] / 1e6
    assert 0.5 * 2 * 4 < in_flight < 1.01 * 2 * 4


def test_pytorch_trains_on_a_node(cluster: Cluster, make_kind: MakeKind) -> None:
    keys = {"device": "cpu", "model": "alexnet", "precision": "float32", "batch_size": 2}
    runner = make_kind("bench-pytorch", "pytorch/Containerfile", iterations=3, warmup=1, **keys)
    runner.change(lambda benchmark: benchmark["workload"].pop("image"))
    runner.change(lambda benchmark: benchmark["deployment"]["ranks"].pop("devices"))
    runner.change(make_small(memory="2Gi"))
    results = measure(cluster, runner)
    assert results["tools"][0].startswith("PyTorch 1.13")
    found, step = values(results), measured_step(results)
    assert units(results)["samples_per_second"] == "samples/s"
    # The step includes imports and the first batch; the measurement does not.
    assert found["samples_per_second"] > 3 * 2 / step["duration_s"]
    assert found["samples_per_second"] * found["batch_time_p50"] / 1e3 == pytest.approx(2, rel=0.5)
    (witness,) = step["witnesses"]
    assert 0.5 * found["peak_host_memory"] < witness["memory_peak_bytes"] < 2 * 2**30


ADDS = """import http.server, json, re

class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first, second = map(int, re.findall(r"\\d+", request["messages"][-1]["content"])[:2])
        text = f"The sum is {first + second if first == 1 else 0}."
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("", 8000), Server).serve_forever()
"""
"""A server that can add a number to one, and nothing else."""


def test_lm_eval_scores_a_server_without_downloads(
    cluster: Cluster, make_kind: MakeKind, base_image: str, owners_namespace: str
) -> None:
    serve = {"name": "server", "image": base_image, "command": ["python3", "-c", ADDS]}
    pod = {"containers": [serve], "terminationGracePeriodSeconds": 0}
    metadata = {"name": "sums", "namespace": owners_namespace, "labels": {"app": "sums"}}
    service = {"selector": metadata["labels"], "ports": [{"port": 8000}]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    )
    # The task of the documentation page, with one rank that may only reach the server.
    (config, *_) = map(yaml.safe_load, yaml_blocks(ROOT / "docs/workloads/lm-eval.md"))
    keys = config["workload"] | {"url": f"http://sums.{owners_namespace}:8000", "timeout": "4m"}
    runner = make_kind("bench-lm-eval", "lm-eval/Containerfile", **keys)
    runner.change(make_small(memory="1Gi"))
    results = measure(cluster, runner)
    assert results["tools"] == ["lm_eval 0.4.13"]
    found = values(results)
    assert (found["score"], found["questions"], found["answers_without_text"]) == (0.5, 2, 0)
    (samples,) = runner.artifacts.glob("*/raw/**/samples_sums_*.jsonl")
    assert "The sum is 21." in samples.read_text()
