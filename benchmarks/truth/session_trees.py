"""Compares session trees in a run with their trace, based on the server's record: when each request
arrived, after which others, and how much of its prompt was cached.

    python -m benchmarks.truth.session_trees [--requests N] [--users N] [--json]

The trace has the format of Weka's KV-cache tester. Its roots spawn subagents that share the first
blocks of their prompts and overlap later requests, join them, and shorten their contexts. Prompts
are sent as token ids to the mock server, which records the kernel's stamp of each arrival and keeps
all blocks of all prompts. Each request must arrive once, after all its predecessors have ended and
its pause is over. The server must have cached exactly those blocks of its prompt that earlier
requests of its tree contain by hash id.
"""

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aiperf_svc.core.datasets.session_trees import TracedTree
from aiperf_svc.core.datasets.weka_trace import read_tree
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id
from aiperf_svc.mock_server.accounts import max_overlap
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.requests import PrefixCache
from aiperf_svc.mock_server.running import running
from benchmarks.agent_traces import make_tokenizer
from benchmarks.machine import describe
from benchmarks.truth.client_runs import ClientRun, run_client
from benchmarks.truth.comparison import NS_PER_MS, own_rows, spread

BLOCK_SIZE = 16
SHARED_BLOCKS = 4
OUTPUT_TOKENS = 4
LATE_P99_MS = 5.0
"""Limit of the p99 delay of a request after its time."""
TIMEOUT_S = 180.0


class Session:
    """Makes the requests of one session, with times of milliseconds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._fresh = itertools.count(1)
        self.count = 0

    def _request(self, at_s: float, ids: Sequence[int], taken_s: float) -> dict[str, Any]:
        self.count += 1
        return {
            "t": at_s, "type": "s", "model": "m", "hash_ids": list(ids), "api_time": taken_s,
            "in": len(ids) * BLOCK_SIZE - self._rng.randrange(BLOCK_SIZE), "out": OUTPUT_TOKENS,
        }  # fmt: skip

    def _new(self, most: int) -> list[int]:
        return list(itertools.islice(self._fresh, self._rng.randint(1, most)))

    def _subagent(self, at_s: float, shared: Sequence[int]) -> tuple[dict[str, Any], float]:
        """Return a subagent and the time at which it ends."""
        rng, now, ids, inner = self._rng, at_s, [*shared, *self._new(3)], list[dict[str, Any]]()
        for _ in range(rng.randint(1, 4)):
            inner.append(self._request(now, ids, taken := rng.uniform(0.001, 0.01)))
            now += taken + rng.uniform(0, 0.004)
            ids += self._new(2)
        name = f"agent-{self.count}"
        return {"t": at_s, "type": "subagent", "agent_id": name, "requests": inner}, now

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests, including those of subagents."""
        rng, now, found = self._rng, 0.0, list[dict[str, Any]]()
        ids = shared = list(itertools.islice(self._fresh, SHARED_BLOCKS))
        for _ in range(rng.randint(4, 12)):
            if len(ids) > 3 * SHARED_BLOCKS and rng.random() < 0.2:
                ids = ids[: len(ids) // 2]
            ids = [*ids, *self._new(4)]
            found.append(self._request(now, ids, taken := rng.uniform(0.001, 0.02)))
            now += taken
            for _ in range(rng.choice((0, 0, 1, 2))):
                subagent, end = self._subagent(now + rng.uniform(0, 0.004), shared)
                found.append(subagent)
                if rng.random() < 0.7:
                    now = max(now, end)
            now += rng.uniform(0, 0.006)
        return found


def lines(requests: int) -> Iterator[str]:
    """Yield the lines of a trace with at least this many requests."""
    rng, count = random.Random(5), 0
    for number in itertools.count():
        if count >= requests:
            return
        session = Session(rng)
        members = {"id": f"trace{number}", "block_size": BLOCK_SIZE, "hash_id_scope": "local"}
        yield json.dumps({**members, "models": ["m"], "requests": session.requests()})
        count += session.count


def compare(
    trees: Sequence[TracedTree], run: ClientRun, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare the arrivals and the cached tokens of a run with its trace."""
    own = own_rows(run, rows)
    by_id = {row["request_id"]: row for row in own}
    cached = dict(zip(run.request_ids, run.records["cached_tokens"].tolist(), strict=True))
    missing = followed = joins = fewer = more = 0
    late_ns, begins, ends = list[int](), list[int](), list[int]()
    for index, tree in enumerate(trees):
        numbers = range(len(tree.requests))
        ids = [request_id(run.run_id, Phase.PROFILING, index, number) for number in numbers]
        if absent := sum(each not in by_id or each not in cached for each in ids):
            missing += absent
            continue
        arrived = [by_id[each]["arrival_wall_ns"] for each in ids]
        ended = [by_id[each]["end_wall_ns"] or sys.maxsize for each in ids]
        begins.append(min(arrived))
        ends.append(max(ended))
        for number, plan in enumerate(tree.plans):
            if plan.after:
                due = max(ended[other] for other in plan.after) + plan.delay_ns
                late_ns.append(arrived[number] - due)
                followed += len(plan.after)
                joins += len(plan.after) > 1
        cache = PrefixCache(1)
        for number in sorted(numbers, key=arrived.__getitem__):
            request = tree.requests[number]
            blocks = request.hash_ids[: request.input_tokens // BLOCK_SIZE]
            difference = cached[ids[number]] - BLOCK_SIZE * cache.add(list(map(str, blocks)))
            fewer += difference < 0
            more += difference > 0
    return {
        "requests": sum(len(tree.requests) for tree in trees),
        "trees": len(trees),
        "spawned_streams": sum(len(tree.streams) - 1 for tree in trees),
        "followed_requests": followed,
        "joins": joins,
        "missing": missing,
        "unexpected": len(own) - sum(len(tree.requests) for tree in trees) + missing,
        "early": sum(each < 0 for each in late_ns),
        "fewer_cached_tokens": fewer,
        "more_cached_tokens": more,
        "live_trees": max_overlap(sorted(begins), sorted(ends)),
        "late_ms": spread(np.array(late_ns) / NS_PER_MS),
    }


def measured(requests: int, users: int) -> dict[str, Any]:
    """Return the figures of one run."""
    content = list(lines(requests))
    trees = [read_tree(line.encode(), "trace") for line in content]
    total = sum(len(tree.requests) for tree in trees)
    config = MockServerConfig(
        ttft="10ms", itl="1ms", tokens=OUTPUT_TOKENS, truth=True, prefix_cache_block=BLOCK_SIZE
    )
    with tempfile.TemporaryDirectory() as folder, running(config) as server:
        file, tokenizer = Path(folder) / "trace.jsonl", Path(folder) / "tokenizer.json"
        file.write_text("\n".join(content))
        make_tokenizer(tokenizer)
        flags = ["--endpoint-type", "completions", "--prompt-token-ids"]
        flags += ["--tokenizer", str(tokenizer), "--custom-dataset-type", "weka_trace"]
        flags += ["--input-file", str(file), "--concurrency", str(users)]
        flags += ["--request-count", str(total)]
        artifacts = Path(folder) / "artifacts"
        artifacts.mkdir()
        run = run_client(server.url, flags, folder=artifacts, longest_s=TIMEOUT_S)
        rows = server.truth(rows=True)["rows"]
    return compare(trees, run, rows) | {"verdict": run.results["aiperf_svc"]["verdict"]}


def judge(figures: Mapping[str, Any], users: int) -> list[dict[str, Any]]:
    """Return each target with the measured value."""
    none = ("missing", "unexpected", "early", "fewer_cached_tokens", "more_cached_tokens")
    wanted: list[tuple[str, Any, Any, bool]] = [
        (name, figures[name], 0, figures[name] == 0) for name in none
    ]
    trees = figures["live_trees"]
    wanted.append(("live_trees", trees, users, trees == users))
    p99 = figures["late_ms"].get("p99", float("inf"))
    wanted.append(("late_ms p99", p99, LATE_P99_MS, p99 < LATE_P99_MS))
    return [
        {"name": name, "value": value, "target": target, "met": is_met}
        for name, value, target, is_met in wanted
    ]


def main() -> int:
    """Run the trace and print the results. Return 0 if every target is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measured(options.requests, options.users)
    targets = judge(figures, options.users)
    if options.json:
        print(json.dumps({"machine": describe(), **figures, "targets": targets}, indent=1))
    else:
        late = figures.pop("late_ms")
        for name, value in figures.items():
            print(f"{name:22}{value:>12,}" if isinstance(value, int) else f"{name:22}{value:>12}")
        print(f"{'late, ms':22}" + "  ".join(f"{name} {each:.3f}" for name, each in late.items()))
        for target in targets:
            outcome = "met" if target["met"] else "MISSED"
            print(f"{target['name']}: {target['value']:g}, target {target['target']:g}: {outcome}")
    return 0 if all(target["met"] for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
