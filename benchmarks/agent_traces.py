"""Measures the startup cost of an agent trace with many requests.

    python -m benchmarks.agent_traces [--requests N] [--trees N] [--tokenizer] [--json]

The trace has Weka's format: sessions of 40 to 160 requests with subagents and up to 102,400 tokens
in a prompt. It is read twice, as in a run: once before anything starts, and once by the dataset
manager. Then the requests of the first trees are created, as many as the load has users. CPU times
do not depend on other load of the machine. `--tokenizer` counts with a byte-level BPE of 4,000
tokens, trained on Python sources. `--json` measures both variants in separate processes and
compares them with the targets.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from aiperf_svc.adapters.datasets.builder import build_dataset
from aiperf_svc.adapters.datasets.checks import check_dataset
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.tree_dataset import TreeDataset

BLOCK_SIZE = 64
MAX_BLOCKS = 1_600
TARGETS = (("cpu_s", 10.0), ("memory_mib", 500.0))
"""Limits of CPU time and memory of the start with a tokenizer."""


class Session:
    """Makes the requests of one session."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_id = 1
        self.count = 0

    def _ids(self, number: int) -> list[int]:
        first, self._next_id = self._next_id, self._next_id + number
        return list(range(first, first + number))

    def _request(self, at_s: float, ids: list[int], taken_s: float) -> dict[str, Any]:
        self.count += 1
        return {
            "t": round(at_s, 3), "type": "s", "model": "m", "hash_ids": ids,
            "in": len(ids) * BLOCK_SIZE - self._rng.randrange(BLOCK_SIZE),
            "out": self._rng.randint(20, 900), "api_time": round(taken_s, 3),
        }  # fmt: skip

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests, including those of subagents."""
        rng, now, found = self._rng, 0.0, list[dict[str, Any]]()
        shared = self._ids(200)
        ids = list(shared)
        for _ in range(rng.randint(40, 160)):
            ids = ids + self._ids(rng.randint(1, 30))
            if len(ids) > MAX_BLOCKS:
                ids = shared + self._ids(100)
            taken = rng.uniform(1, 20)
            found.append(self._request(now, ids, taken))
            now += taken
            if rng.random() < 0.1:
                begin, own, inner = now, self._ids(80), list[dict[str, Any]]()
                for _ in range(rng.randint(2, 15)):
                    taken = rng.uniform(1, 8)
                    inner.append(self._request(now, own, taken))
                    now, own = now + taken + 0.5, own + self._ids(10)
                name = f"agent-{self._next_id}"
                found.append({"t": begin, "type": "subagent", "agent_id": name, "requests": inner})
            now += rng.expovariate(1 / 5)
        return found


def lines(requests: int) -> Iterator[str]:
    """Yield the lines of a trace with at least this many requests."""
    rng, count, number = random.Random(1), 0, 0
    while count < requests:
        session = Session(rng)
        members = {"id": f"trace{number}", "block_size": BLOCK_SIZE, "hash_id_scope": "local"}
        yield json.dumps({**members, "models": ["m"], "requests": session.requests()}) + "\n"
        count, number = count + session.count, number + 1


def make_tokenizer(file: Path) -> None:
    """Write the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4_000, initial_alphabet=alphabet, show_progress=False)
    texts = (line for text in topics.values() for line in text.splitlines())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(file))


def measured(requests: int, trees: int, tokenizer: Path | None) -> dict[str, float]:
    """Return the figures of one start in this process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        with file.open("w") as out:
            out.writelines(lines(requests))
        config = BenchmarkConfig.model_validate(
            {
                "endpoint": {"url": "http://127.0.0.1:1", "model": "m"},
                "load": {"concurrency": trees, "duration": "1h", "agentic": {}},
                "dataset": {"kind": "weka_trace", "file": str(file)},
                "tokenizer": {"name": str(tokenizer) if tokenizer else None},
            }
        )
        begin = time.process_time()
        check_dataset(config)
        checked = time.process_time()
        dataset = asyncio.run(build_dataset(config))
        assert isinstance(dataset, TreeDataset)
        built = time.process_time()
        number = made = 0
        while made < min(trees, dataset.entry_count):
            made += len(dataset.block(number))
            number += 1
        ended = time.process_time()
        dataset.close()
        report = dataset.report
        return {
            "requests": report.turns,
            "trees": report.entries,
            "file_mib": file.stat().st_size / 2**20,
            "checked_cpu_s": checked - begin,
            "read_cpu_s": built - checked,
            "trees_made": made,
            "made_cpu_s": ended - built,
            "cpu_s": ended - begin,
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def main() -> None:
    """Print the times and the memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--trees", type=int, default=16)
    parser.add_argument("--tokenizer", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        make_tokenizer(file)
        if not args.json:
            found = measured(args.requests, args.trees, file if args.tokenizer else None)
            for name, value in found.items():
                print(f"{name:14} {value:,.1f}")
            return
        cases = {"without a tokenizer": None, "with a tokenizer": file}
        # Peak memory is measured per process.
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            figures = {
                name: pool.apply(measured, (args.requests, args.trees, tokenizer))
                for name, tokenizer in cases.items()
            }
    start = figures["with a tokenizer"]
    targets = [
        {"name": name, "value": start[name], "target": maximum, "met": start[name] < maximum}
        for name, maximum in TARGETS
    ]
    print(json.dumps({"cases": figures, "targets": targets}, indent=1))


if __name__ == "__main__":
    main()
