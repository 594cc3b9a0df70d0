"""Tokenizers from files and folders, and names that do not exist."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter, load_token_counter
from aiperf_svc.config.dataset import Tokenizer as Options
from aiperf_svc.domain.errors import ConfigError

WORDS = {"[START]": 0, "[UNKNOWN]": 1, "one": 2, "two": 3, "three": 4}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a tokenizer of three words that adds a start token, cuts at two and pads to eight."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNKNOWN]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[START] $A", special_tokens=[("[START]", 0)]
    )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("by_folder", [False, True])
def test_tokenizer_is_found_by_file_and_by_folder(file: Path, by_folder: bool) -> None:
    name = str(file.parent if by_folder else file)
    counter = load_token_counter(Options(name=name))
    assert counter is not None
    assert counter.name == name
    assert counter.encode("two one") == [3, 2]
    assert counter.decode([3, 2]) == "two one"


def test_counts_are_neither_truncated_nor_padded(file: Path) -> None:
    counter = load_token_counter(Options(name=str(file)))
    assert counter is not None
    assert counter.count("one two three one") == 4
    assert counter.count_batch(["", "one", "one two three", "four"]) == [0, 1, 3, 1]
    assert counter.count_batch([]) == []


class Panic(BaseException):
    """The Python exception of a panic in a Rust library."""

    __module__ = "pyo3_runtime"


class Panicking:
    """A `tokenizers.Tokenizer` that panics for every text."""

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode(self, text: str, **options: bool) -> None:
        raise Panic("index out of bounds")

    def encode_batch_fast(self, texts: list[str], **options: bool) -> None:
        raise Panic("index out of bounds")


def test_panic_of_the_library_is_an_error() -> None:
    counter = LibraryTokenCounter("odd", Panicking())
    reason = r"^tokenizer\.name: 'odd' panicked: index out of bounds; use another version"
    for method in (counter.count, counter.encode):
        with pytest.raises(ConfigError, match=reason):
            method("text")
    with pytest.raises(ConfigError, match=reason):
        counter.count_batch(["text"])


def test_interrupt_of_the_library_stays_one() -> None:
    tokenizer = Panicking()
    tokenizer.encode = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        LibraryTokenCounter("odd", tokenizer).count("text")


def test_config_without_a_name_loads_no_tokenizer() -> None:
    assert load_token_counter(Options()) is None


@pytest.mark.parametrize(
    "name",
    [
        "nowhere.json",
        "./nowhere",
        "/nowhere/at/all",
        "~/nowhere",
        "~nobody-at-all/x",
        "/" + "x" * 999,
    ],
)
def test_missing_path_is_refused_without_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^tokenizer\.name: there is no file .*; give the path"):
        load_token_counter(Options(name=name))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json; give the path"):
        load_token_counter(Options(name=str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"model": {"type": "BPE"}}'])
def test_invalid_tokenizer_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer: .*; give the path"):
        load_token_counter(Options(name=str(path)))


def test_library_is_not_loaded_without_a_tokenizer() -> None:
    program = (
        "import sys; from aiperf_svc.adapters.datasets import builder; "
        "from aiperf_svc.adapters.datasets.tokenizers import load_token_counter; "
        "from aiperf_svc.config.dataset import Tokenizer; load_token_counter(Tokenizer()); "
        "sys.exit('tokenizers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unreachable_hub_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    program = (
        "from aiperf_svc.adapters.datasets.tokenizers import load_token_counter\n"
        "from aiperf_svc.config.dataset import Tokenizer\n"
        "from aiperf_svc.domain.errors import ConfigError\n"
        "try: load_token_counter(Tokenizer(name='some/model'))\n"
        "except ConfigError as problem: print(problem)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("tokenizer.name: 'some/model' (revision main): no file or")
    assert "HF_HUB_OFFLINE is set" in result.stdout
    assert "give the path of a tokenizer.json file" in result.stdout
