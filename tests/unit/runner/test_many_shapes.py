"""Planning and describing an experiment costs the same per shape, whatever their number."""

import cProfile
import gc
import pstats
from pathlib import Path

import pytest

from aiperf_svc.core.experiments.schedule import Part
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner.parts import Expansion, Work
from aiperf_svc.runner.stack import preview
from aiperf_svc.runner.stack.members import expand_requests, member_requests, part_request
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.previews import shape_lines
from aiperf_svc.workloads.previews.changes import StackChanges
from aiperf_svc.workloads.previews.shape_lines import MAX_SHAPES
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.small_configs import small_benchmark


def request_of(number: int, parallel: int) -> StackRequest:
    servers = [["--ttft", f"{each}ms", "--tokens", "16"] for each in range(1, number + 1)]
    data = small_benchmark(
        "http://target",
        load={"duration": "1s", "concurrency": 1},
        deployment={"target": {"kind": "mock"}, "ttl": "168h"},
        experiment={"product": {"deployment.target.args": servers}, "parallel": parallel},
    )
    return StackRequest(stack="s", config=parse_benchmark(data, "f"), environ={}, settings={})


def calls_for(number: int, parallel: int) -> int:
    """Return the number of function calls, a cost that does not depend on the machine."""
    gc.collect()  # Garbage collected later would be counted here.
    with cProfile.Profile() as profile:
        request = request_of(number, parallel)
        compared = StackChanges(base="nothing")
        preview.of_shapes(request, compared, is_markdown=False)
        assert len({plan.identity.run_id for plan in request.plans}) == number
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("parallel", [1, 2], ids=["in turn", "at once"])
def test_cost_grows_linearly_with_shapes(parallel: int) -> None:
    calls_for(2, parallel)  # Fills caches and imports modules.
    few, more, most = (calls_for(MAX_SHAPES + n, parallel) for n in (0, 10, 20))
    # 1% of them is five calls for each pair of shapes.
    assert most - more == pytest.approx(more - few, rel=0.01)


def test_visits_of_blocks_replace_their_target() -> None:
    over = "deployment.target.args"
    config = request_of(2, 1).config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    config["experiment"]["blocks"] = {"over": over, "count": 1}
    request = StackRequest(stack="s", config=parse_benchmark(config, "f"), environ={}, settings={})
    text = shape_lines.lines(request.shapes, request.plans, at_once=1)
    staying = [line.partition("; ")[2] for line in text if line.startswith("shape ")]
    assert staying == ["deadline stays"] * 3


def test_parallel_stacks_share_their_plans(tmp_path: Path) -> None:
    request = request_of(3, 2)
    expansion = expand_requests({"": request})
    works = [work_of(expansion, number, tmp_path) for number in expansion.rounds]
    first, *others = (part_request(request, expansion, each).all_shapes for each in works)
    assert all(each is first for each in others)
    plans = [part_request(request, expansion, each).plan for each in works]
    assert len({plan.identity.run_id for plan in plans}) == 3
    assert [plan.identity.stack for plan in plans] == ["s-1", "s-2", "s-3"]


def test_shapes_of_several_targets_live_one_by_one() -> None:
    data = small_benchmark(
        "http://a.test",
        targets=[{"name": name, "endpoint": {"url": f"http://{name}.test"}} for name in ("a", "b")],
        load={"duration": "10m", "concurrency": 1},
        deployment={
            "ttl": "20m",
            "ready_timeout": "5m",
            "namespace": {"mode": "existing", "name": "n"},
            "queue": "q",
        },
        experiment={"product": {"workers.max": [1, 2]}},
    )
    request = StackRequest(stack="s", config=parse_benchmark(data, "f"), environ={}, settings={})
    requests = member_requests(request)
    plans = [plan for each in requests.values() for plan in each.plans]
    assert [plan.identity.stack for plan in plans] == ["s-a", "s-a", "s-b", "s-b"]
    assert all(plan.queue for plan in plans)
    # One stack runs both one after another.
    del data["targets"]
    request = StackRequest(stack="s", config=parse_benchmark(data, "f"), environ={}, settings={})
    with pytest.raises(ConfigError, match="trials of 2 shapes take up to"):
        _ = request.plans


def work_of(expansion: Expansion, number: int, folder: Path) -> Work:
    member, shape = expansion.first, expansion.shapes[""][number - 1]
    return Work(
        part=Part(number), member=member, config=member.config, shape=shape, folder=folder,
        logs=folder, run_id="r",
    )  # fmt: skip
