"""Metric rows to lines of profile_export.jsonl, in the shape of AIPerf 0.13.

Values come from the metric catalog's own formulas, so a line says what the summary says. A line
holds only what is defined for its request: all metrics of a completed one; of any other only those
that cover every request sent, and its error. Durations are in milliseconds.

Rendering one line at a time through a JSON encoder costs more than everything else that is done
with a request. So numbers are encoded for a whole batch at once, and pasted into a template that is
made once for each combination of metrics that occurs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.columns import FLAG_COLUMNS
from aiperf_svc.domain.metric_catalog import CATALOG, Population
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.records import Rows

Columns = Mapping[str, NDArray[Any]]

TOKEN_AND_COUNT_TAGS: Final = (
    "input_sequence_length",
    "output_token_count",
    "reasoning_token_count",
    "output_sequence_length",
    "usage_prompt_tokens",
    "usage_completion_tokens",
    "usage_total_tokens",
    "http_req_connection_reused",
    "http_req_chunks_received",
    "content_chunk_count",
)
"""Written as integers."""
REAL_TAGS: Final = (
    "request_latency",
    "time_to_first_token",
    "time_to_second_token",
    "time_to_first_output_token",
    "inter_token_latency",
    "decode_duration",
    "output_token_throughput_per_user",
    "e2e_output_token_throughput",
    "prefill_throughput_per_user",
    "intended_request_latency",
    "intended_time_to_first_token",
    "schedule_lag",
    "receive_lag",
    "stamp_uncertainty",
    "usage_prompt_tokens_diff_pct",
    "usage_completion_tokens_diff_pct",
    "http_req_connecting",
    "http_req_connection_overhead",
    "http_req_sending",
    "http_req_waiting",
    "http_req_receiving",
    "http_req_duration",
    "http_req_total",
    "http_req_data_sent",
    "http_req_data_received",
)
GAPS_TAG: Final = "inter_chunk_latency"
_TIMES: Final = ("index", "turn", "due_wall_ns", "start_wall_ns", "ack_wall_ns", "end_wall_ns")
_NS_PER_MS: Final = 1e6
_KNOWN_TEMPLATES: Final = 256

_METRICS = tuple(CATALOG[tag] for tag in TOKEN_AND_COUNT_TAGS + REAL_TAGS)
_COVERS_ALL_SENT = np.array([metric.population is Population.SENT for metric in _METRICS])
_INTEGERS: Final = len(TOKEN_AND_COUNT_TAGS)


def columns_for_formulas(rows: Rows) -> dict[str, NDArray[Any]]:
    """The columns of METRIC_DTYPE rows, and of their flags those that formulas ask for."""
    columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
    for name, flag in FLAG_COLUMNS.items():
        columns[name] = (columns["flags"] & np.uint16(flag)) != 0
    return columns


class LineRenderer:
    """Renders the lines of one run, or of one record processor's part of it."""

    def __init__(self, *, run_id: str, processor_id: str, has_warmup: bool) -> None:
        self._prefix = _literal(f"{run_id}-p-")
        self._processor_id = _literal(processor_id)
        self._phase_index = int(has_warmup)
        """AIPerf counts phases from 0, the warmup included."""
        self._templates: dict[bytes, bytes] = {}

    def render(
        self,
        rows: Rows,
        *,
        worker_id: str,
        gaps_ns: Sequence[NDArray[np.int64] | None],
        messages: Sequence[str],
    ) -> list[bytes]:
        """One line for each of the METRIC_DTYPE rows, all of the profiling phase and of one worker.

        `gaps_ns` are the gaps between content chunks, None where there are none; `messages` say
        what went wrong.
        """
        values = self._values(rows)
        defined = ~np.isnan(values)
        whole = np.zeros((len(rows), len(_TIMES) + _INTEGERS), dtype=np.int64)
        for column, name in enumerate(_TIMES):
            whole[:, column] = rows[name]
        np.copyto(
            whole[:, len(_TIMES) :],
            values[:, :_INTEGERS],
            where=defined[:, :_INTEGERS],
            casting="unsafe",
        )
        kinds = np.column_stack(
            [
                defined,
                [gaps is not None for gaps in gaps_ns],
                rows["ack_wall_ns"] != 0,
                rows["outcome"] == Outcome.CANCELLED,
                rows["error"] != 0,
            ]
        )
        packed = np.packbits(kinds, axis=1)
        width, patterns = packed.shape[1], packed.tobytes()
        worker = msgspec.json.encode(worker_id)
        entries = rows["entry"].tolist()
        has_error = kinds[:, -1].tolist()
        lines = []
        for i, (integers, reals) in enumerate(
            zip(_numbers(whole), _numbers(values[:, _INTEGERS:]), strict=True)
        ):
            pattern = patterns[i * width : (i + 1) * width]
            template = self._templates.get(pattern) or self._template(pattern, kinds[i])
            index, turn, due, start, ack, end = integers[: len(_TIMES)]
            gaps = gaps_ns[i]
            lines.append(
                template
                % (
                    index,
                    index,
                    turn,
                    index,
                    entries[i],
                    turn,
                    due,
                    start,
                    ack,
                    end,
                    worker,
                    index,
                    *integers[len(_TIMES) :],
                    *reals,
                    b"" if gaps is None else msgspec.json.encode((gaps / _NS_PER_MS).tolist()),
                    _error(rows, i, messages[i]) if has_error[i] else b"",
                )
            )
        return lines

    def _values(self, rows: Rows) -> NDArray[np.float64]:
        """All metrics of all rows, NaN where a line leaves one out; shape (rows, metrics)."""
        columns = columns_for_formulas(rows)
        values = np.empty((len(_METRICS), len(rows)))
        for place, metric in enumerate(_METRICS):
            assert metric.compute is not None
            values[place] = metric.compute(columns)
        incomplete = rows["outcome"] != Outcome.COMPLETED
        if incomplete.any():
            values[np.ix_(~_COVERS_ALL_SENT, incomplete)] = np.nan
            values[:, rows["start_wall_ns"] == 0] = np.nan
        return values.T

    def _template(self, pattern: bytes, kinds: NDArray[np.bool_]) -> bytes:
        *defined, has_gaps, has_ack, is_cancelled, has_error = kinds.tolist()
        phase = Phase.PROFILING.name.lower()
        prefix = self._prefix
        ack = "%b" if has_ack else "null%.0b"
        text = (
            f'{{"metadata":{{"session_num":%b,"x_request_id":"{prefix}%b-%b",'
            f'"x_correlation_id":"{prefix}%b","conversation_id":"session_%06d","turn_index":%b,'
            f'"credit_issued_ns":%b,"request_start_ns":%b,"request_ack_ns":{ack},'
            f'"request_end_ns":%b,"worker_id":%b,"record_processor_id":"{self._processor_id}",'
            f'"benchmark_phase":"{phase}","phase_index":{self._phase_index},'
            f'"profiling_index":0,"phase_name":"{phase}","phase_kind":"{phase}",'
            f'"was_cancelled":{"true" if is_cancelled else "false"},'
            f'"context_overflow_skip":false,"agent_depth":0,'
            f'"root_correlation_id":"{prefix}%b"}},"metrics":{{'
        )
        separator = ""
        for metric, is_defined in zip(_METRICS, defined, strict=True):
            if is_defined:
                text += f'{separator}"{metric.tag}":{{"value":%b,"unit":"{_literal(metric.unit)}"}}'
                separator = ","
            else:
                # Takes its argument and writes nothing.
                text += "%.0b"
        if has_gaps:
            text += f'{separator}"{GAPS_TAG}":{{"value":%b,"unit":"ms"}}'
        else:
            text += "%.0b"
        text += '},"error":%b}\n' if has_error else "}%.0b}\n"
        if len(self._templates) >= _KNOWN_TEMPLATES:
            self._templates.clear()
        template = self._templates[pattern] = text.encode()
        return template


def _literal(text: str) -> str:
    """As part of a template: escaped as JSON, and per cent signs doubled."""
    return msgspec.json.encode(text).decode()[1:-1].replace("%", "%%")


def _numbers(matrix: NDArray[Any]) -> list[list[bytes]]:
    """JSON of all numbers of a matrix, NaN as null."""
    rows = msgspec.json.encode(matrix.tolist())[2:-2].split(b"],[")
    return [row.split(b",") for row in rows]


def _error(rows: Rows, place: int, message: str) -> bytes:
    status = int(rows["status"][place])
    kind = ErrorKind(int(rows["error"][place]))
    return msgspec.json.encode(
        {"code": status or None, "type": kind.name.lower(), "message": message}
    )
