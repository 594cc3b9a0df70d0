"""Renders lines of profile_export.jsonl from `records.parquet`, for runs with more requests than
profile_export.jsonl contains.

Lines are as in `profile_export.jsonl`, without values that records do not have: gaps between
chunks, HTTP traces and the processor's name. An error has the first message of its kind.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from arro3.io import read_parquet

from aiperf_svc.adapters.exports.parquet_export import (
    CLOCKS_KEY,
    MESSAGES_KEY,
    RUN_KEY,
    STREAMS_KEY,
    WARMUP_KEY,
)
from aiperf_svc.core.lines.renderer import LineRenderer, RequestStreams, Source
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.records import METRIC_DTYPE, RARE, Rows

NAME = "profile_export_all.jsonl"
"""Name of the file, next to `profile_export.jsonl`, whose lines have more keys."""
BATCH_ROWS = 1 << 16
"""Rows per batch: about 80 MB of lines, and hundreds of rows of each of 200 workers."""


def write_lines(records: Path, path: Path) -> int:
    """Write a line for every request of the profiling phase and return their number. `records` has
    passed `check_records`. Raises OSError."""
    count = 0
    with path.open("wb") as file:
        for lines in _batches(records):
            file.write(lines)
            count += lines.count(b"\n")
    return count


def _batches(records: Path) -> Iterator[bytes]:
    reader = read_parquet(records, batch_size=BATCH_ROWS)
    known = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
    workers, messages = json.loads(known[CLOCKS_KEY]), json.loads(known[MESSAGES_KEY])
    streams = [b64decode(each) for each in json.loads(known.get(STREAMS_KEY, "[]"))]
    renderer = LineRenderer(
        run_id=known[RUN_KEY],
        has_warmup=json.loads(known[WARMUP_KEY]),
        streams=RequestStreams(*streams) if streams else None,
    )
    for batch in reader:
        rows = _rows(batch)
        yield _lines(rows[rows["phase"] == Phase.PROFILING], renderer, workers, messages)


def _rows(batch: Any) -> Rows:
    rows = np.empty(batch.num_rows, dtype=METRIC_DTYPE)
    known = set(batch.schema.names)
    for name in METRIC_DTYPE.names or ():
        rows[name] = batch.column(name).to_numpy() if name in known else RARE[name]
    return rows


def _lines(
    rows: Rows, renderer: LineRenderer, workers: dict[str, dict[str, str]], messages: dict[str, str]
) -> bytes:
    ranks, whose = np.unique(rows["worker"], return_inverse=True)
    return renderer.render(
        rows,
        sources=[
            Source(workers.get(str(rank), {}).get("worker", f"worker-{rank}"), "")
            for rank in ranks.tolist()
        ],
        whose=whose,
        gaps=[b""] * len(rows),
        traces=[b""] * len(rows),
        messages=[
            messages.get(f"{kind}/{status}", "") if kind else ""
            for kind, status in zip(rows["error"].tolist(), rows["status"].tolist(), strict=True)
        ],
    )
