"""Builds the dataset of a run: reads or downloads its files and passes them to `core.datasets`."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic

from msgspec.structs import replace

from aiperf_svc.adapters.datasets.files import (
    Watch,
    folder_of,
    pool_files,
    read_held_lines,
    read_list,
    read_pools,
    sha256_of,
    sha256_of_files,
)
from aiperf_svc.adapters.datasets.media_files import read_folders, with_files
from aiperf_svc.adapters.datasets.tokenizers import load_token_counter
from aiperf_svc.adapters.datasets.trace_files import FORMATS, TraceFile, block_size_of
from aiperf_svc.adapters.datasets.tree_files import index_trees, open_trees
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import AGENT_TRACES, Dataset, DatasetKind
from aiperf_svc.core.datasets import multi_turn, random_pool, sharegpt, single_turn
from aiperf_svc.core.datasets.assembly import Source, assemble, own_warmup, synthetic_prompts
from aiperf_svc.core.datasets.base import TokenCounter
from aiperf_svc.core.datasets.block_texts import BlockTexts
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.datasets.streamed import StreamedDataset
from aiperf_svc.core.datasets.trace_prompts import TracePrompts
from aiperf_svc.core.datasets.tree_dataset import TreeDataset

AnyDataset = BuiltDataset | StreamedDataset | TreeDataset
Progress = Callable[[str], None]
"""Function that is called with a progress message, in the caller's event loop."""

SHOWN_EVERY_S = 1.0
"""Minimum time between two progress messages about a file."""
HELD_BYTES = 64 * 2**20
"""Number of a trace's requests that are created before the load and kept in memory. Requests of a
larger trace are created on demand."""

KINDS = {
    DatasetKind.SINGLE_TURN: (single_turn.parse, read_held_lines),
    DatasetKind.MULTI_TURN: (multi_turn.parse, read_held_lines),
    DatasetKind.SHAREGPT: (sharegpt.parse, read_list),
}


async def build_dataset(
    config: BenchmarkConfig, *, progress: Progress = lambda text: None
) -> AnyDataset:
    """Build the dataset of `config`, rendered. The work is done in a thread, so the event loop is
    not blocked.

    Raises ConfigError (DatasetError for errors in a file), and EnvironmentProblem if a download
    fails.
    """
    dataset = config.dataset
    file, name = dataset.file, dataset.file or "synthetic"
    if dataset.public is not None:
        name, file = await _downloaded(dataset, progress)
    text = f"building the dataset from {name}"
    progress(text)
    loop, shown_s = asyncio.get_running_loop(), monotonic()

    def watch(share: float) -> None:
        nonlocal shown_s
        if monotonic() - shown_s >= SHOWN_EVERY_S:
            shown_s = monotonic()
            loop.call_soon_threadsafe(progress, f"{text}: {share:.0%} read")

    return await asyncio.to_thread(_build, config, name, file, watch)


async def _downloaded(dataset: Dataset, progress: Progress) -> tuple[str, str]:
    """Return the URL and file of a public dataset."""
    # The HTTP client takes long to import, and few runs download.
    from aiperf_svc.adapters.datasets import downloads

    url = dataset.url or downloads.SHAREGPT_URL
    sha256 = dataset.sha256 or (None if dataset.url else downloads.SHAREGPT_SHA256)
    shown = -1

    def show(have: int, total: int) -> None:
        nonlocal shown
        step = have * 20 // total if total else have // (64 * 2**20)
        if step != shown:
            shown = step
            total_text = f" of {total / 2**20:,.0f}" if total else ""
            progress(f"downloading {url}: {have / 2**20:,.0f}{total_text} MiB")

    result = await downloads.download(
        url,
        folder=downloads.cache_folder(),
        max_bytes=dataset.max_download,
        sha256=sha256,
        progress=show,
    )
    return url, result.file


def _build(config: BenchmarkConfig, name: str, file: str | None, watch: Watch) -> AnyDataset:
    dataset, counter = config.dataset, load_token_counter(config.tokenizer, is_for_prompts=True)
    if file is None:
        prompts = synthetic_prompts(config, counter, read_folders(dataset))
        return assemble(config, prompts, Source(name, has_random_text=True), counter)
    if dataset.kind in FORMATS:
        return _built_trace(config, file, counter, watch)
    if dataset.kind in AGENT_TRACES:
        return _built_trees(config, file, counter, watch)
    path = Path(file).expanduser()
    if dataset.kind is DatasetKind.RANDOM_POOL:
        return _built_pools(config, path, counter, watch)
    parse, read = KINDS[dataset.kind]
    prompts, left_out = parse(read(path, watch), file, limit=dataset.entries)
    source = Source(name, sha256=sha256_of(path), left_out=left_out)
    return assemble(config, with_files(prompts, path.parent), source, counter)


def _built_pools(
    config: BenchmarkConfig, path: Path, counter: TokenCounter | None, watch: Watch
) -> BuiltDataset:
    count = config.dataset.entries or random_pool.DEFAULT_ENTRIES
    own = own_warmup(config.load.warmup, count)
    prompts = random_pool.draw(read_pools(path, watch=watch), count + own, config.random_seed)
    sha256 = sha256_of_files(pool_files(path))
    source = Source(str(config.dataset.file), sha256=sha256, own_warmup=own)
    return assemble(config, with_files(prompts, folder_of(path)), source, counter)


def _built_trees(
    config: BenchmarkConfig, file: str, counter: TokenCounter | None, watch: Watch
) -> TreeDataset:
    with ExitStack() as opened:
        trees = opened.enter_context(closing(open_trees(config, watch=watch)))
        index, numbers = index_trees(config, trees)
        is_of_blocks = config.dataset.kind is DatasetKind.WEKA_TRACE
        dataset = TreeDataset(
            config,
            index,
            Source(file, sha256=trees.sha256(), has_random_text=is_of_blocks),
            counter,
            read=lambda number: trees.reread(numbers[number]),
            close=trees.close,
        )
        # Trees are read for as long as the dataset is used.
        opened.pop_all()
        return dataset


def _built_trace(
    config: BenchmarkConfig, file: str, counter: TokenCounter | None, watch: Watch
) -> BuiltDataset | StreamedDataset:
    with ExitStack() as opened:
        trace = opened.enter_context(closing(TraceFile(config.dataset.kind, file, watch=watch)))
        index = trace.index(config)
        is_replay = config.load.fixed_schedule
        own = own_warmup(config.load.warmup, index.entry_count) if is_replay else None
        sha256 = sha256_of(Path(file).expanduser())
        source = Source(
            file,
            sha256=sha256,
            left_out=index.left_out,
            own_warmup=own,
            has_random_text=bool((index.inputs >= 0).any()),
        )
        texts = BlockTexts(config.prompt_seed, block_size_of(config.dataset), counter)
        prompts = TracePrompts(config, index, trace.reread_rows, texts, warmup_entries=own or 0)
        if prompts.expected_bytes.sum() <= HELD_BYTES:
            built = assemble(config, prompts.entries(range(len(prompts))), source, counter)
            return replace(built, due_ns=prompts.due_ns)
        streamed = StreamedDataset(config, prompts, source, counter, close=trace.close)
        # Rows are read for as long as the dataset is used.
        opened.pop_all()
        return streamed
