"""Tokenizers of four families, trained within a second on text from Python's distribution."""

from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter
from aiperf_svc.config.benchmark import BenchmarkConfig
from tests.support.small_configs import small_config

LINES = [line for text in topics.values() for line in text.splitlines()][::4]
"""A quarter of the text suffices for small vocabularies in a quarter of the time."""


def _byte_level(vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def _metaspace(vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def _word_piece(vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


_FAMILIES: dict[str, tuple[Callable[[int], Tokenizer], int]] = {
    "byte-level": (_byte_level, 4000),
    "bytes": (_byte_level, 256),
    "metaspace": (_metaspace, 2000),
    "word-piece": (_word_piece, 1000),
}


@pytest.fixture(scope="session")
def counter() -> LibraryTokenCounter:
    """A small byte-level BPE, the most common kind."""
    make, vocabulary = _FAMILIES["byte-level"]
    return LibraryTokenCounter("tiny", make(vocabulary))


@pytest.fixture(scope="session", params=_FAMILIES, ids=lambda name: name)
def any_counter(request: pytest.FixtureRequest) -> LibraryTokenCounter:
    """One tokenizer of each family. `bytes` has a token for every byte and none for words."""
    make, vocabulary = _FAMILIES[request.param]
    return LibraryTokenCounter(request.param, make(vocabulary))


@pytest.fixture
def config() -> Callable[..., BenchmarkConfig]:
    """Return a function that makes a config: `config(dataset={…}, load={…}, endpoint={…})`."""

    def make(**parts: dict[str, object]) -> BenchmarkConfig:
        load = {"concurrency": 1, "requests": 1} | parts.pop("load", {})
        return small_config(load=load, **parts)

    return make


@pytest.fixture
def in_file(
    config: Callable[..., BenchmarkConfig], tmp_path: Path
) -> Callable[..., BenchmarkConfig]:
    """Return a function that makes a config for a file named `data`: `in_file("sharegpt", content,
    load={…})`."""

    def make(kind: str, content: str | bytes, **parts: dict[str, object]) -> BenchmarkConfig:
        file = tmp_path / "data"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        dataset = {"kind": kind, "file": str(file)} | parts.pop("dataset", {})
        return config(dataset=dataset, **parts)

    return make
