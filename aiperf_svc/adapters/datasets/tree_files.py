"""Files of agent traces: their session trees in order and by random access."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from aiperf_svc.adapters.datasets.files import (
    LineFile,
    Until,
    Watch,
    read_held_lines,
    read_whole,
    sha256_of_files,
    unwatched,
)
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind
from aiperf_svc.core.datasets import otel_trace, weka_trace
from aiperf_svc.core.datasets.dag_jsonl import DagSessions
from aiperf_svc.core.datasets.session_trees import TracedTree
from aiperf_svc.core.datasets.trace_index import Line
from aiperf_svc.core.datasets.tree_dataset import TreeIndex
from aiperf_svc.domain.errors import DatasetError

_WHOLE = (".json", ".json.gz")
_LINES = (".jsonl", ".jsonl.gz")
ReadTree = Callable[[bytes, str], TracedTree]


def open_trees(
    config: BenchmarkConfig,
    *,
    is_kept: bool = True,
    until: Until = lambda: False,
    watch: Watch = unwatched,
) -> "TreeFile":
    """Open the trace of a config. Without `is_kept` no tree can be read again. Reading ends when
    `until` returns true. Raises DatasetError if it cannot be read."""
    dataset = config.dataset
    path = Path(str(dataset.file)).expanduser()
    if dataset.kind is DatasetKind.DAG_JSONL:
        return _DagFile(path, config.random_seed, watch)
    read: ReadTree = otel_trace.read_tree
    if dataset.kind is DatasetKind.WEKA_TRACE:
        read = partial(weka_trace.read_tree, think_time_only=dataset.think_time_only)
    return _TreesOfFiles(path, read, is_kept=is_kept, until=until, watch=watch)


def used_trees(
    config: BenchmarkConfig, file: "TreeFile"
) -> Iterator[tuple[int, TracedTree | None]]:
    """Yield the trees that a config uses with their numbers in the file; None for a tree that is
    left out. Raises DatasetError with the file and record."""
    max_tokens, used = config.dataset.max_context_tokens, 0
    for number, tree in enumerate(file.trees()):
        if used == config.dataset.entries:
            return
        is_used = max_tokens is None or tree.max_tokens <= max_tokens
        used += is_used
        yield number, tree if is_used else None


def index_trees(config: BenchmarkConfig, file: "TreeFile") -> tuple[TreeIndex, list[int]]:
    """Read the trees that a config uses. Returns their index, and the number of each in the file.
    Raises DatasetError with the file and record."""
    index, numbers = TreeIndex(), list[int]()
    for number, tree in used_trees(config, file):
        if tree is None:
            index.left_out += 1
        else:
            index.add(tree)
            numbers.append(number)
    return index, numbers


class _DagFile:
    """A file whose lines refer to each other, so all are kept in memory."""

    def __init__(self, path: Path, seed: int, watch: Watch) -> None:
        self._path = path
        self._sessions = DagSessions(read_held_lines(path, watch), str(path), seed=seed)

    def trees(self) -> Iterator[TracedTree]:
        return self._sessions.trees()

    def reread(self, number: int) -> TracedTree:
        return self._sessions.tree(self._sessions.roots[number])

    def sha256(self) -> str:
        return sha256_of_files([self._path])

    def close(self) -> None:
        """Do nothing: no file is open."""


class _Unit(msgspec.Struct, frozen=True):
    """Location of a tree: a line of a file, or the whole file."""

    file: int
    line: Line | None


class _TreesOfFiles:
    """A trace with one JSON object per tree: files, or lines of files."""

    def __init__(
        self, path: Path, read: ReadTree, *, is_kept: bool, until: Until, watch: Watch
    ) -> None:
        self._files = _files(path)
        self._read = read
        self._is_kept, self._until, self._watch = is_kept, until, watch
        self._opened: dict[int, LineFile] = {}
        self._units: list[_Unit] = []

    def trees(self) -> Iterator[TracedTree]:
        for number, file in enumerate(self._files):
            if file.name.endswith(_WHOLE):
                self._units.append(_Unit(number, None))
                yield self._read(read_whole(file), str(file))
                self._watch((number + 1) / len(self._files))
            else:
                yield from self._of_lines(number, file)
            if self._until():
                return

    def _of_lines(self, number: int, file: Path) -> Iterator[TracedTree]:
        lines = LineFile(file, is_kept=self._is_kept, until=self._until, watch=self._watch)
        self._opened[number] = lines
        for line_number, line in lines:
            if line.strip():
                self._units.append(_Unit(number, lines.line))
                yield self._read(line, f"{file}:{line_number}")

    def reread(self, number: int) -> TracedTree:
        unit = self._units[number]
        file = self._files[unit.file]
        if unit.line is None:
            return self._read(read_whole(file), str(file))
        (content,) = self._opened[unit.file].reread([unit.line])
        return self._read(content, f"{file}:{unit.line.number}")

    def sha256(self) -> str:
        return sha256_of_files(self._files)

    def close(self) -> None:
        for lines in self._opened.values():
            lines.close()


TreeFile = _DagFile | _TreesOfFiles
"""The trees of an open trace."""


def _files(path: Path) -> list[Path]:
    """Return the files of a trace, sorted by name."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.name.endswith(_WHOLE + _LINES))
    if not files:
        raise DatasetError(f"dataset.file: {path} is a folder without files of .json or .jsonl")
    return files
