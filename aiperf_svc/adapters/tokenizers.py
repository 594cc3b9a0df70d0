"""Token counts by the `tokenizers` library, which is loaded only when a tokenizer is configured."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiperf_svc.config import models as config
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

_BATCH = 128
"""Texts encoded at a time: an encoding takes 40 times the memory of its text."""
_FILE = "tokenizer.json"
_REMEDY = "give the path of a tokenizer.json file, or of a folder that holds one"


class LibraryTokenCounter:
    """A TokenCounter over a `tokenizers.Tokenizer`; never adds, cuts or pads."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        # A file may say that its model's inputs are cut or padded, which would falsify counts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._name = name
        self._tokenizer = tokenizer

    @property
    def name(self) -> str:
        """What the config calls it."""
        return self._name

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text; leaves out the offsets, which cost a third of the time."""
        counts: list[int] = []
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            counts += map(len, encodings)
        return counts

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def load_token_counter(options: config.Tokenizer) -> LibraryTokenCounter | None:
    """The configured tokenizer, None when none is.

    A name that exists as a file or folder is one, else it is looked up on the hub, which needs a
    network or a filled cache. Raises ConfigError for a file that is no tokenizer, and
    EnvironmentProblem when the hub does not give one.
    """
    if options.name is None:
        return None
    path = Path(options.name).expanduser()
    file = path / _FILE if path.is_dir() else path
    if file.is_file():
        return LibraryTokenCounter(options.name, _from_file(file))
    if path.is_dir():
        raise ConfigError(f"tokenizer.name: the folder {path} holds no {_FILE}; {_REMEDY}")
    if path.suffix == ".json" or options.name.startswith((".", "/", "~")):
        raise ConfigError(f"tokenizer.name: there is no file {path}; {_REMEDY}")
    return LibraryTokenCounter(options.name, _from_hub(options.name, options.revision))


def _from_file(file: Path) -> Any:
    try:
        return _tokenizer_class().from_file(str(file))
    except Exception as error:  # the library raises plain Exception for all faults of a file
        raise ConfigError(f"tokenizer.name: {file} is no tokenizer: {error}; {_REMEDY}") from error


def _from_hub(name: str, revision: str) -> Any:
    try:
        return _tokenizer_class().from_pretrained(name, revision=revision)
    except Exception as error:  # the hub client's errors: network, proxy, name, access, content
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EnvironmentProblem(
            f"tokenizer.name: {name!r} (revision {revision}) is neither a local path nor could it "
            f"be loaded from the hub: {reason}; {_REMEDY}"
        ) from error


def _tokenizer_class() -> Any:
    # One thread a process: the processes of a run share the cores already, and a thread pool would
    # compete with those that take time stamps.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    return Tokenizer
