"""Renders metric rows as lines of profile_export.jsonl, in the format of AIPerf 0.13.

Values come from the metric catalog's own formulas, so a line agrees with the summary. A line only
contains metrics that are defined for its request: all metrics of a completed request; for others,
only the error and the metrics that cover every sent request. Durations are in milliseconds.

Rendering one line at a time with a JSON encoder costs more than all other work for a request. So
the numbers of many lines are formatted at once (`number_text`) and inserted between the pieces of a
template that is made once per combination of metrics.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.lines.number_text import DECIMAL, INTEGER, PADDED, filled
from aiperf_svc.core.stats.columns import FLAG_COLUMNS
from aiperf_svc.domain.metric_catalog import METRICS, Kind, Population
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.domain.request_ids import INDEX_BASE, TURN_BASE, TURNS, id_prefix
from aiperf_svc.protocol.records import Rows

GAPS_TAG: Final = "inter_chunk_latency"
_METADATA: Final = (
    ("index", INTEGER),
    ("id_turn", INTEGER),
    ("id_index", INTEGER),
    ("id_index", INTEGER),
    ("id_index", INTEGER),
    ("entry", PADDED),
    ("turn", INTEGER),
    ("due_wall_ns", INTEGER),
    ("start_wall_ns", INTEGER),
    ("end_wall_ns", INTEGER),
    ("finish_reason", INTEGER),
    ("ack_wall_ns", INTEGER),
)
"""Numbers in the order of a template. The last one is omitted if it is 0."""
_STREAM_IDS: Final = ("id_stream", "id_index", "id_root", "id_index")
_PARENT_ID: Final = ("id_parent", "id_index")
_GROUP: Final = "group_of_"
_GROUP_DIGITS: Final = len("8100-")
_FIRST_GROUP: Final = int(id_prefix("", Phase.PROFILING)[-_GROUP_DIGITS:-1])
_DEPTH: Final = "depth"
"""Numbers for a session tree's requests, which replace the ids of a conversation."""
_HOLE: Final = "\0"
"""Placeholder for a number in a template. In JSON this character only appears escaped, like the
next three."""
_GAPS: Final = b"\1"
_ERROR: Final = b"\2"
_TRACE: Final = b"\3"
_CUT: Final = {
    int(outcome): msgspec.json.encode({"code": 499, "type": outcome.name.lower(), "message": text})
    for outcome, text in (
        (Outcome.CANCELLED, "the load ended before its response had"),
        (Outcome.ABANDONED, "its client left before its response had ended"),
    )
}
"""Errors of requests that were cut, with AIPerf's code for a client that closed its request. These
requests are counted separately from errors."""
_KNOWN_TEMPLATES: Final = 4_096
"""Maximum number of cached templates, which take 20 MB."""

_METRICS = tuple(
    sorted(
        (metric for metric in METRICS if metric.kind is Kind.RECORD and metric.in_lines),
        key=lambda metric: not metric.is_integer,
    )
)
"""Metrics of a line, integers first."""
_COVERS_ALL_SENT = np.array([metric.population is Population.SENT for metric in _METRICS])
_INTEGERS: Final = sum(metric.is_integer for metric in _METRICS)


def columns_for_formulas(rows: Rows) -> dict[str, NDArray[Any]]:
    """Return the columns of METRIC_DTYPE rows, and the flag columns that formulas use."""
    columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
    for name, flag in FLAG_COLUMNS.items():
        columns[name] = (columns["flags"] & np.uint16(flag)) != 0
    return columns


class Source(NamedTuple):
    """Worker that measured a request."""

    worker_id: str
    processor_id: str


class RequestStreams:
    """Maps requests to streams of a session tree."""

    def __init__(self, turns: bytes, streams: bytes) -> None:
        """`turns` and `streams` are the fields of the dataset's shape."""
        ends = np.cumsum(np.frombuffer(turns, dtype="<u2"), dtype=np.int64)
        self._begins = np.append(np.int64(0), ends)
        self._numbers = np.frombuffer(streams, dtype="<u2").reshape(-1, 4).astype(np.int64)

    def of(self, rows: Rows) -> NDArray[np.int64]:
        """Return for each row the first request of its stream, of the stream that spawned it and of
        the root, and the depth of its stream; shape (rows, 4)."""
        found: NDArray[np.int64] = self._numbers[self._begins[rows["entry"]] + rows["turn"]]
        return found


class LineRenderer:
    def __init__(
        self, *, run_id: str, has_warmup: bool, streams: RequestStreams | None = None
    ) -> None:
        """`streams` are those of session trees."""
        self.streams = streams
        self._prefix = id_prefix(run_id, Phase.PROFILING)
        self._phase_index = int(has_warmup)
        """Index of the phase: AIPerf counts phases from 0, including the warmup."""
        self._templates: dict[tuple[Source, bytes], list[bytes]] = {}
        """Text pieces between numbers, by source and metrics."""

    def render(
        self,
        rows: Rows,
        *,
        sources: Sequence[Source],
        whose: NDArray[Any],
        gaps: Sequence[bytes],
        messages: Sequence[str] | Mapping[int, str],
        traces: Sequence[bytes],
    ) -> bytes:
        """Return one line for each of the METRIC_DTYPE rows, all of the profiling phase, in their
        order.

        `whose` maps each row to its index in `sources`. `gaps` are the JSON lists of the gaps
        between content chunks, empty without any; `messages` are the error texts by the index of
        their row; `traces` is the JSON of the rows' HTTP traces, empty without traces.
        """
        values = _values(rows)
        is_cut = np.isin(rows["outcome"], list(_CUT))
        of_streams = self.streams.of(rows) if self.streams is not None else None
        is_long = rows["turn"] >= TURNS
        if of_streams is not None:
            is_long |= (of_streams[:, :3] >= TURNS).any(axis=1)
        has = np.vstack(
            [
                ~np.isnan(values),
                [bool(each) for each in gaps],
                rows["ack_wall_ns"] != 0,
                is_cut,
                is_cut | (rows["error"] != 0),
                [bool(each) for each in traces],
                is_long,
                np.zeros(len(rows), bool) if of_streams is None else of_streams[:, 3] > 0,
            ]
        )
        groups = _alike(has, whose)
        lines = [b""] * len(rows)
        for places in groups:
            present = has[:, places[0]]
            template = self._template(sources[whose[places[0]]], present)
            has_gaps, _, _, has_error, has_trace, _, _ = present[len(_METRICS) :].tolist()
            kinds, numbers = _numbers(rows, values, places, present, of_streams)
            text = filled(template, kinds, numbers, len(places))
            if has_gaps:
                text = _filled(text, _GAPS, [gaps[place] for place in places])
            if has_trace:
                text = _filled(text, _TRACE, [traces[place] for place in places])
            if has_error:
                errors = [_error(rows, place, messages) for place in places]
                text = _filled(text, _ERROR, errors)
            if len(groups) == 1:
                return text
            for place, line in zip(places, text.splitlines(keepends=True), strict=True):
                lines[place] = line
        return b"".join(lines)

    def _template(self, source: Source, present: NDArray[np.bool_]) -> list[bytes]:
        key = source, np.packbits(present).tobytes()
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _KNOWN_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._new_template(source, present)
        return template

    def _new_template(self, source: Source, present: NDArray[np.bool_]) -> list[bytes]:
        *defined, has_gaps, has_ack, is_cancelled, has_error, has_trace, is_long, is_child = (
            present.tolist()
        )
        prefix, phase = self._prefix, f'"{Phase.PROFILING.name.lower()}"'
        # For late turns, the group before the index is a number too.
        group = f"{prefix[:-_GROUP_DIGITS]}{_HOLE}-" if is_long else prefix
        own_id = f'"{group}{_HOLE}-{_HOLE}"'
        first = f"{prefix}{TURN_BASE}-"
        # The placeholders have the number and order of `_METADATA`.
        metadata = {
            "session_num": _HOLE,
            "x_request_id": own_id,
            "x_correlation_id": f'"{first}{_HOLE}"',
            "root_correlation_id": f'"{first}{_HOLE}"',
            **({"parent_correlation_id": own_id} if is_child else {}),
            "conversation_id": f'"session_{_HOLE}"',
            "turn_index": _HOLE,
            "credit_issued_ns": _HOLE,
            "request_start_ns": _HOLE,
            "request_end_ns": _HOLE,
            "finish_reason": _HOLE,
            "request_ack_ns": _HOLE if has_ack else "null",
            "worker_id": f'"{_literal(source.worker_id)}"',
            "record_processor_id": f'"{_literal(source.processor_id)}"',
            "benchmark_phase": phase,
            "phase_index": str(self._phase_index),
            "profiling_index": "0",
            "phase_name": phase,
            "phase_kind": phase,
            "was_cancelled": "true" if is_cancelled else "false",
            "context_overflow_skip": "false",
            "agent_depth": "0" if self.streams is None else _HOLE,
        }
        if self.streams is not None:
            for name in ("x_correlation_id", "root_correlation_id"):
                metadata[name] = own_id
        metrics = {
            metric.tag: f'{{"value":{_HOLE},"unit":"{_literal(metric.unit)}"}}'
            for metric, is_defined in zip(_METRICS, defined, strict=True)
            if is_defined
        }
        if has_gaps:
            metrics[GAPS_TAG] = f'{{"value":{_GAPS.decode()},"unit":"ms"}}'
        line = {"metadata": _object(metadata), "metrics": _object(metrics)}
        if has_trace:
            line["trace_data"] = _TRACE.decode()
        if has_error:
            line["error"] = _ERROR.decode()
        return (_object(line) + "\n").encode().split(_HOLE.encode())


def _values(rows: Rows) -> NDArray[np.float64]:
    """Return all metrics of all rows, NaN if a line omits one; shape (metrics, rows)."""
    columns = columns_for_formulas(rows)
    values = np.empty((len(_METRICS), len(rows)))
    for index, metric in enumerate(_METRICS):
        assert metric.compute is not None
        values[index] = metric.compute(columns)
    incomplete = rows["outcome"] != Outcome.COMPLETED
    if incomplete.any():
        values[np.ix_(~_COVERS_ALL_SENT, incomplete)] = np.nan
        values[:, rows["start_wall_ns"] == 0] = np.nan
    return values


def _alike(has: NDArray[np.bool_], whose: NDArray[Any]) -> Sequence[Sequence[int]]:
    """Group the indexes of rows with the same metrics and source. Usually all rows form one
    group."""
    if (has == has[:, :1]).all() and (whose == whose[:1]).all():
        return [range(len(whose))] if len(whose) else []
    places: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
    for index, (bits, its) in enumerate(
        zip(np.packbits(has, axis=0).T, whose.tolist(), strict=True)
    ):
        places[bits.tobytes(), its].append(index)
    return list(places.values())


def _numbers(
    rows: Rows,
    values: NDArray[np.float64],
    places: Sequence[int],
    what: NDArray[np.bool_],
    of_streams: NDArray[np.int64] | None,
) -> tuple[bytes, list[NDArray[Any]]]:
    """Return the kinds and the numbers of rows with the same metrics, in the order of their
    template, as `filled` takes them."""
    if len(places) != len(rows):
        rows, values = rows[places], values[:, places]
        of_streams = None if of_streams is None else of_streams[places]
    metadata: Sequence[tuple[str, bytes]] = _METADATA
    if not what[len(_METRICS) + 1]:
        metadata = _METADATA[:-1]
    by_name = {
        name: rows[name].astype(np.int64) for name, _ in metadata if not name.startswith("id_")
    }
    turns = {"id_turn": by_name["turn"]}
    if of_streams is not None:
        metadata = _with_streams(metadata, is_child=bool(what[-1]))
        turns |= zip(("id_stream", "id_parent", "id_root"), of_streams.T, strict=False)
        by_name[_DEPTH] = np.ascontiguousarray(of_streams[:, 3])
    by_name["id_index"] = by_name["index"] + INDEX_BASE
    if what[-2]:
        # In long conversations, the group of a turn precedes its number in the group.
        metadata = [
            each
            for name, kind in metadata
            for each in ([(f"{_GROUP}{name}", INTEGER)] if name in turns else []) + [(name, kind)]
        ]
        groups = {f"{_GROUP}{name}": each // TURNS for name, each in turns.items()}
        by_name |= {name: each + _FIRST_GROUP for name, each in groups.items()}
        turns = {name: each % TURNS for name, each in turns.items()}
    by_name |= {name: each + TURN_BASE for name, each in turns.items()}
    defined = np.flatnonzero(what[: len(_METRICS)])
    integers = values[defined[defined < _INTEGERS]].astype(np.int64)
    reals = np.ascontiguousarray(values[defined[defined >= _INTEGERS]])
    kinds = b"".join(kind for _, kind in metadata) + INTEGER * len(integers) + DECIMAL * len(reals)
    return kinds, [*(by_name[name] for name, _ in metadata), *integers, *reals]


def _with_streams(
    metadata: Sequence[tuple[str, bytes]], *, is_child: bool
) -> list[tuple[str, bytes]]:
    """Return the numbers of a template for session trees, with those of a request id first."""
    ids = (*_STREAM_IDS, *(_PARENT_ID if is_child else ()))
    own = [(name, INTEGER) for name in ids]
    return [*metadata[:3], *own, *metadata[5:], (_DEPTH, INTEGER)]


def _filled(text: bytes, hole: bytes, contents: Sequence[bytes]) -> bytes:
    """Return the text with its placeholders replaced in order."""
    pieces = [b""] * (2 * len(contents) + 1)
    pieces[::2] = text.split(hole)
    pieces[1::2] = contents
    return b"".join(pieces)


def _object(members: dict[str, str]) -> str:
    """Return a JSON object whose values are already JSON."""
    return "{" + ",".join(f'"{key}":{value}' for key, value in members.items()) + "}"


def _literal(text: str) -> str:
    """Return the text escaped as part of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]


def _error(rows: Rows, place: int, messages: Sequence[str] | Mapping[int, str]) -> bytes:
    if cut := _CUT.get(int(rows["outcome"][place])):
        return cut
    status = int(rows["status"][place])
    kind = ErrorKind(int(rows["error"][place]))
    return msgspec.json.encode(
        {"code": status or None, "type": kind.name.lower(), "message": messages[place]}
    )
