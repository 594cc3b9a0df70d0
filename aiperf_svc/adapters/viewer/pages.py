"""The pages of the viewer: the list, and what is made of chosen runs."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from aiperf_svc.adapters.comparison import history_views, page
from aiperf_svc.adapters.comparison.comparing import compare_folders, curves_of
from aiperf_svc.adapters.comparison.run_folders import read_runs
from aiperf_svc.adapters.report.blocks import (
    Box,
    Cell,
    Header,
    Plots,
    Row,
    document,
    read_file,
    table,
)
from aiperf_svc.adapters.report.curve_chart import curve_plot
from aiperf_svc.adapters.viewer.index import DEPTH, Entry, choices
from aiperf_svc.core.compare.comparison import TOLERANCE
from aiperf_svc.core.compare.history import history
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.number_text import number

REPORT = "report.html"
_ENVIRONMENT = Environment(
    loader=PackageLoader("aiperf_svc.adapters.viewer"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals["read_file"] = read_file
_ENVIRONMENT.filters["path"] = quote
_LIST = _ENVIRONMENT.get_template("list.html")


def list_page(root: Path, entries: Sequence[Entry]) -> bytes:
    """Render the list of all results."""
    filters = [
        (name, label, choices(entries, name))
        for name, label in (("kind", "Kind"), ("model", "Model"), ("verdict", "Verdict"))
    ]
    return _LIST.render(
        root=str(root),
        depth=DEPTH,
        entries=entries,
        filters=filters,
        when=lambda entry: history_views.when(entry.when_wall_ns) if entry.when_wall_ns else "",
        has_report=lambda entry: (root / entry.id / REPORT).is_file(),
    ).encode()


def compare_page(folders: Sequence[Path]) -> bytes:
    """Compare two folders, of which the first is the base. Raises ConfigError and Incomparable."""
    found, groups = compare_folders(folders, tolerance=TOLERANCE, with_curves=True)
    return page.render(found, groups, curves_of(folders))


def curves_page(folders: Sequence[Path]) -> bytes:
    """Plot the curves of experiments, with the Pareto front of all. Raises ConfigError."""
    plot = curve_plot(curves_of(folders))
    if plot is None:
        raise ConfigError(
            "no curve: an experiment needs trials of several loads, whose servers stream tokens"
        )
    names = ", ".join(folder.name for folder in folders)
    return document("Curves", [Header("Throughput against speed", [names]), Plots([plot], "")])


def history_page(folders: Sequence[Path]) -> bytes:
    """Show the usual metric of runs over time. Raises ConfigError and Incomparable."""
    return history_views.render_page(history(read_runs(folders), "", tolerance=TOLERANCE))


def files_page(title: str, folder: Path) -> bytes:
    """List the files of a folder."""
    found = sorted(folder.iterdir(), key=lambda each: (each.is_dir(), each.name))
    rows = [
        Row(
            [
                Cell(
                    each.name, is_head=True, link=quote(each.name) + ("/" if each.is_dir() else "")
                ),
                Cell("" if each.is_dir() else number(each.stat().st_size)),
            ]
        )
        for each in found
        if not each.is_symlink()
    ]
    return document(title, [Header(title, []), table(("File", "Bytes"), rows)])


def error_page(text: str) -> bytes:
    """Say why there is no such page."""
    return document("Error", [Header("Not possible", []), Box("invalid", text)])
