"""`aiperf-svc trace`: statistics of a trace of a real service."""

import argparse
from contextlib import closing

from rich.console import Console
from rich.table import Table

from aiperf_svc.adapters.datasets.trace_files import FORMATS, TraceFile
from aiperf_svc.adapters.terminal.output import bar_chart, joined, print_found
from aiperf_svc.adapters.terminal.tables import text_table
from aiperf_svc.cli.checks import shown_reading
from aiperf_svc.cli.parsers.tools import TRACE_LIMITS
from aiperf_svc.core.datasets.trace_summary import Arrivals, TraceSummary, summarise_trace
from aiperf_svc.core.datasets.traces import limited
from aiperf_svc.domain.errors import ConfigError, DatasetError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.number_text import significant

_CHART_LINES = 5
_ROWS = (
    ("Requests", "requests", ",.0f"),
    ("Left out (no tokens, too long)", "left_out", ",.0f"),
    ("Duration (s)", "duration_s", ",.1f"),
    ("Rate (requests/s)", "rate", ",.4g"),
    ("Most requests in a second", "peak_rate", ",.0f"),
    ("Variation of gaps (Poisson: 1)", "gap_variation", ".3g"),
    ("Blocks", "blocks", ",.0f"),
    ("Distinct prefixes of blocks", "distinct_blocks", ",.0f"),
    ("Input tokens in earlier prefixes", "prefix_reuse", ".1%"),
)


def trace(args: argparse.Namespace) -> int:
    """Read the trace and print its description."""
    kinds = {kind.value: kind for kind in FORMATS}
    kind = kinds.get(args.custom_dataset_type)
    if kind is None:
        raise ConfigError(
            f"--custom-dataset-type: {args.custom_dataset_type!r}: expected {', '.join(kinds)}"
        )
    for name in ("--isl-block-size", *TRACE_LIMITS):
        value = getattr(args, name[2:].replace("-", "_"))
        if value is not None and value < 1:
            raise ConfigError(f"{name}: {value}: expected a number of at least 1")
    block_size = args.isl_block_size or FORMATS[kind].block_size
    try:
        with (
            shown_reading(args.file) as watch,
            closing(TraceFile(kind, args.file, is_kept=False, watch=watch)) as trace,
        ):
            described = summarise_trace(
                limited(trace.rows(block_size), args.synthesis_max_isl, args.synthesis_max_osl),
                block_size=block_size,
                units_per_second=trace.format.units_per_second,
            )
    except DatasetError as error:
        raise DatasetError(str(error).removeprefix("dataset.file: ")) from error
    if not described.requests:
        limit = args.synthesis_max_isl
        within = f", at most {limit:,} (--synthesis-max-isl) of input" if limit is not None else ""
        raise ConfigError(f"{args.file}: no requests; expected rows with tokens{within}")
    print_found(described, _print, as_json=args.json)
    return int(ExitCode.OK)


def _print(described: TraceSummary, console: Console) -> None:
    stats = ("avg", "min", "p50", "p90", "p99", "max")
    lengths = [
        (title, *(f"{getattr(found, stat):,.0f}" for stat in stats))
        for title, found in (
            ("Input tokens", described.input_tokens),
            ("Output tokens", described.output_tokens),
        )
        if found is not None
    ]
    counts = Table(box=None, show_header=False, pad_edge=False)
    counts.add_column("")
    counts.add_column("", justify="right")
    for title, key, form in _ROWS:
        if (value := getattr(described, key)) is not None:
            counts.add_row(title, format(value, form))
    console.print(counts)
    if lengths:
        console.print(text_table(("", *stats), lengths))
    if described.arrivals is not None:
        _print_arrivals(described.arrivals, console)


def _print_arrivals(arrivals: Arrivals, console: Console) -> None:
    """Print the arrivals over time as bars."""
    part_s, counts = arrivals.part_s, arrivals.counts
    rates = joined([count / part_s for count in counts], console.width - 2)
    console.print("Requests/s over the time of the trace")
    for line in bar_chart(rates, height=_CHART_LINES):
        console.print(f"  {line}", no_wrap=True)
    end, highest = significant(part_s * len(counts)), significant(max(rates))
    console.print(f"  0 to {end} s, highest bar {highest}/s")
