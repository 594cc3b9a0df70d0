"""Reads a dataset file before anything is started, so mistakes in it are found early. For synthetic
prompts, it checks the size of their images and audio.

The file is read once, for at most `CHECK_S` and, if its kind is kept in memory, up to
`CHECK_BYTES`. The rest is checked when the dataset is built.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import msgspec

from aiperf_svc.adapters.datasets.builder import KINDS
from aiperf_svc.adapters.datasets.files import Watch, folder_of, is_packed, read_pools, unwatched
from aiperf_svc.adapters.datasets.media_files import read_folders, with_files
from aiperf_svc.adapters.datasets.trace_files import FORMATS, TraceFile, unread_members
from aiperf_svc.adapters.datasets.tree_files import open_trees, used_trees
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES, DatasetKind
from aiperf_svc.core.datasets.assembly import Source, finish, synthetic_count, warmup_share
from aiperf_svc.core.datasets.media import check_media_size
from aiperf_svc.core.datasets.random_pool import one_of_each
from aiperf_svc.core.datasets.session_trees import TracedTree
from aiperf_svc.core.datasets.trace_index import MAX_ROWS, Line, too_many_rows
from aiperf_svc.core.datasets.tree_dataset import check_contents
from aiperf_svc.core.load.fixed_schedule import due_times

CHECK_S = 20.0
CHECK_BYTES = 2**28


class CheckedFile(msgspec.Struct, frozen=True):
    """The result of reading a dataset file."""

    notice: str = ""
    """Notices for the user."""
    replay_ns: int | None = None
    """Length of a fixed schedule without speedup; None if there is none or the file is not read
    whole."""


def check_dataset(config: BenchmarkConfig, watch: Watch = unwatched) -> CheckedFile:
    """Read the dataset file of a config, if it has one. Raises DatasetError with the file and line,
    or the key."""
    dataset = config.dataset
    file = dataset.file
    if dataset.kind is DatasetKind.SYNTHETIC:
        turns = round(synthetic_count(config) * dataset.turns.number.mean)
        check_media_size(turns, dataset.images, dataset.sounds, read_folders(dataset))
    if file is None:
        return CheckedFile()
    limit = _Limit()
    if config.dataset.kind in FORMATS:
        return _checked_trace(config, file, limit, watch)
    if config.dataset.kind in AGENT_TRACES:
        return _checked_trees(config, file, limit, watch)
    path = Path(file).expanduser()
    if config.dataset.kind is DatasetKind.RANDOM_POOL:
        return _checked_pools(config, path, limit, watch)
    parse, read = KINDS[config.dataset.kind]
    prompts, _ = parse(limit.applied(read(path, watch)), file, limit=config.dataset.entries)
    warmup_share(config, Source(file), len(prompts))
    finish(config, with_files(prompts, path.parent), None, None)
    return CheckedFile(limit.notice(file))


def _checked_pools(
    config: BenchmarkConfig, path: Path, limit: "_Limit", watch: Watch
) -> CheckedFile:
    entries = one_of_each(read_pools(path, limit.applied, watch))
    finish(config, with_files(entries, folder_of(path)), None, None)
    return CheckedFile(limit.notice(str(config.dataset.file)))


def _checked_trees(
    config: BenchmarkConfig, file: str, limit: "_Limit", watch: Watch
) -> CheckedFile:
    with closing(open_trees(config, is_kept=False, until=limit.is_over, watch=watch)) as trees:
        first: TracedTree | None = None
        count = 0
        for _, tree in used_trees(config, trees):
            if tree is not None:
                first = first or tree
                count += 1
        warmup_share(config, Source(file), count)
        assert first is not None
        check_contents(config, first)
    if not limit.is_reached:
        return CheckedFile()
    return CheckedFile(
        f"{file} is checked up to session {count:,}; the rest is checked after the start, when the "
        "dataset is built"
    )


def _checked_trace(
    config: BenchmarkConfig, file: str, limit: "_Limit", watch: Watch
) -> CheckedFile:
    kind = config.dataset.kind
    trace = TraceFile(kind, file, is_kept=False, until=limit.is_over, watch=watch)
    try:
        index = trace.index(config)
    finally:
        trace.close()
    limit.number = trace.line.number
    if limit.is_reached:
        _check_number(config, file, trace.line)
    warmup_share(config, Source(file), index.entry_count)
    notices = (limit.notice(file), _unread_notice(config.dataset.kind, file))
    notice = "; ".join(filter(None, notices))
    if not config.load.fixed_schedule or limit.is_reached:
        return CheckedFile(notice)
    firsts = index.times_s[index.firsts[:-1]]
    at_own_speed = config.load.model_copy(update={"replay_speedup": 1.0})
    return CheckedFile(notice, int(due_times(firsts, at_own_speed)[-1]))


def _check_number(config: BenchmarkConfig, file: str, last: Line) -> None:
    """Raise DatasetError if a file has too many rows, by the size of those up to `last`."""
    is_bounded = config.dataset.entries or config.load.fixed_schedule_end_offset
    path = Path(file).expanduser()
    if is_bounded or is_packed(path):
        return
    rows = path.stat().st_size * last.number // max(1, last.position + last.size)
    if rows > MAX_ROWS:
        raise too_many_rows(file, f"about {rows:,}")


def _unread_notice(kind: DatasetKind, file: str) -> str:
    names = ", ".join(f"`{name}`" for name in unread_members(kind, file))
    return f"{file}: {names}: not read, no row of a {kind} has such a member" if names else ""


class _Limit:
    """Limits how much of a file is read."""

    def __init__(self) -> None:
        self._until_s = monotonic() + CHECK_S
        self.is_reached = False
        self.number = 0
        """The last line that was read."""

    def is_over(self) -> bool:
        self.is_reached = self.is_reached or monotonic() >= self._until_s
        return self.is_reached

    def applied(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Yield lines up to the limit."""
        left = CHECK_BYTES
        for self.number, line in lines:
            yield self.number, line
            left -= len(line)
            if left < 0 or self.is_over():
                self.is_reached = True
                return

    def notice(self, file: str) -> str:
        """Return a notice if the file was not read completely; else empty."""
        if not self.is_reached:
            return ""
        return (
            f"{file} is checked up to line {self.number:,}; the rest is checked after the start, "
            "when the dataset is built"
        )
