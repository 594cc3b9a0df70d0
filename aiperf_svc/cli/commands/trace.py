"""`aiperf-svc trace`: statistics of a trace of a real service."""

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from aiperf_svc.domain.errors import ConfigError, DatasetError
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from aiperf_svc.core.datasets.trace_summary import Arrivals, TraceSummary

DESCRIPTION = """Describe a trace: rates, lengths, and the share of its prompts that repeats an
earlier prefix, which is the highest hit rate of a prefix cache without a limit.

The file is read row by row. `profile --input-file` sends its prompts."""
DEFAULT = "mooncake_trace"

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
_LIMITS = {
    "--synthesis-max-isl": "Leave out the rows with longer prompts, as `profile` does.",
    "--synthesis-max-osl": "Limit the output tokens of each row, as `profile` does.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, its format and the output flag."""
    parser.add_argument("file", metavar="FILE", help="The trace, plain or gzip.")
    parser.add_argument(
        "--custom-dataset-type",
        metavar="TYPE",
        default=DEFAULT,
        help=f"Format, a kind of dataset whose rows have times. Default: {DEFAULT}.",
    )
    parser.add_argument(
        "--isl-block-size",
        "--block-size",
        metavar="N",
        type=int,
        help="Tokens for each hash id. Default: 512, in a bailian_trace 16.",
    )
    for name, help_text in _LIMITS.items():
        parser.add_argument(name, metavar="N", type=int, help=help_text)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def run(args: argparse.Namespace) -> int:
    """Read the trace and print its description."""
    from aiperf_svc.adapters.datasets.trace_files import FORMATS, TraceFile
    from aiperf_svc.cli.checks import shown_reading
    from aiperf_svc.core.datasets.trace_summary import summarise_trace
    from aiperf_svc.core.datasets.traces import limited

    kinds = {kind.value: kind for kind in FORMATS}
    kind = kinds.get(args.custom_dataset_type)
    if kind is None:
        raise ConfigError(
            f"--custom-dataset-type {args.custom_dataset_type!r}: expected {', '.join(kinds)}"
        )
    for name in ("--isl-block-size", *_LIMITS):
        given = getattr(args, name[2:].replace("-", "_"))
        if given is not None and given < 1:
            raise ConfigError(f"{name} {given}: expected a number from 1 on")
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
    if args.json:
        from aiperf_svc.adapters.terminal.output import print_json

        print_json(described)
    else:
        from aiperf_svc.adapters.terminal.output import console_on

        with console_on(sys.stdout) as console:
            _print(described, console)
    return int(ExitCode.OK)


def _print(described: "TraceSummary", console: "Console") -> None:
    from rich import box
    from rich.table import Table

    lengths = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    lengths.add_column("")
    for name in ("avg", "min", "p50", "p90", "p99", "max"):
        lengths.add_column(name, justify="right")
    for title, found in (
        ("Input tokens", described.input_tokens),
        ("Output tokens", described.output_tokens),
    ):
        if found is not None:
            cells = (f"{getattr(found, str(each.header)):,.0f}" for each in lengths.columns[1:])
            lengths.add_row(title, *cells)
    counts = Table(box=None, show_header=False, pad_edge=False)
    counts.add_column("")
    counts.add_column("", justify="right")
    for title, key, form in _ROWS:
        if (value := getattr(described, key)) is not None:
            counts.add_row(title, format(value, form))
    console.print(counts)
    if lengths.row_count:
        console.print(lengths)
    if described.arrivals is not None:
        _print_arrivals(described.arrivals, console)


def _print_arrivals(arrivals: "Arrivals", console: "Console") -> None:
    """Print the arrivals over time as bars."""
    from aiperf_svc.adapters.terminal.output import bar_chart, joined

    part_s, counts = arrivals.part_s, arrivals.counts
    rates = joined([count / part_s for count in counts], console.width - 2)
    console.print("Requests/s over the time of the trace")
    for line in bar_chart(rates, height=_CHART_LINES):
        console.print(f"  {line}", no_wrap=True)
    console.print(f"  0 to {part_s * len(counts):,.4g} s, highest bar {max(rates):,.4g}/s")
