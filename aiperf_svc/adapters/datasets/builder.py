"""Builds the dataset of a run: reads or downloads, then lets `core.datasets` do the rest."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiperf_svc.adapters.datasets.files import read_lines, read_list, sha256_of
from aiperf_svc.adapters.datasets.tokenizers import load_token_counter
from aiperf_svc.adapters.datasets.trace_files import FORMATS, read_trace
from aiperf_svc.config.models import BenchmarkConfig, Dataset, DatasetKind
from aiperf_svc.config.units import format_size
from aiperf_svc.core.datasets import multi_turn, sharegpt, single_turn
from aiperf_svc.core.datasets.assembly import Source, assemble, synthetic_prompts
from aiperf_svc.core.datasets.base import PromptConversation, TokenCounter
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.datasets.traces import trace_prompts

Progress = Callable[[str], None]
"""Function called with a line for people, in the caller's event loop."""

_KINDS = {
    DatasetKind.SINGLE_TURN: (single_turn.parse, read_lines),
    DatasetKind.MULTI_TURN: (multi_turn.parse, read_lines),
    DatasetKind.SHAREGPT: (sharegpt.parse, read_list),
}


async def build_dataset(
    config: BenchmarkConfig, *, progress: Progress = lambda text: None
) -> BuiltDataset:
    """Build the dataset of `config`, rendered. The work is done in a thread, so the event loop is
    not blocked.

    Raises ConfigError (DatasetError for errors in a file), and EnvironmentProblem if a download
    fails.
    """
    dataset = config.dataset
    file, name = dataset.file, dataset.file or "synthetic"
    if dataset.public is not None:
        name, file = await _downloaded(dataset, progress)
    progress(f"building the dataset from {name}")
    return await asyncio.to_thread(_build, config, name, file)


async def _downloaded(dataset: Dataset, progress: Progress) -> tuple[str, str]:
    """Address and file of a public dataset."""
    # HTTP takes long to import, and few runs download.
    from aiperf_svc.adapters.datasets import downloads

    url = dataset.url or downloads.SHAREGPT_URL
    sha256 = dataset.sha256 or (None if dataset.url else downloads.SHAREGPT_SHA256)
    shown = -1

    def show(have: int, total: int) -> None:
        nonlocal shown
        step = have * 20 // total if total else have // (64 * 2**20)
        if step != shown:
            shown = step
            of = f" of {format_size(total)}" if total else ""
            progress(f"downloading {url}: {have / 2**20:,.0f} MiB{of}")

    result = await downloads.download(
        url,
        folder=downloads.cache_folder(),
        max_bytes=dataset.max_download,
        sha256=sha256,
        progress=show,
    )
    return url, result.file


def _build(config: BenchmarkConfig, name: str, file: str | None) -> BuiltDataset:
    counter = load_token_counter(config.tokenizer)
    if file is None:
        return assemble(config, synthetic_prompts(config, counter), Source(name), counter)
    prompts, left_out = _parsed(config, file, counter)
    source = Source(name, sha256=sha256_of(Path(file).expanduser()), left_out=left_out)
    return assemble(config, prompts, source, counter)


def _parsed(
    config: BenchmarkConfig, file: str, counter: TokenCounter | None
) -> tuple[list[PromptConversation], int]:
    """Return the conversations of a file, and the number of those left out."""
    dataset, path = config.dataset, Path(file).expanduser()
    if dataset.kind in FORMATS:
        block_size = dataset.block_size or FORMATS[dataset.kind].block_size
        return trace_prompts(
            read_trace(dataset.kind, file, block_size),
            block_size=block_size,
            seed=config.random_seed,
            counter=counter,
            limit=dataset.entries,
        )
    parse, read = _KINDS[dataset.kind]
    return parse(read(path), file, limit=dataset.entries)
