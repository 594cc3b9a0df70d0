"""Reads and writes the YAML of configs. JSON is YAML, too. Every error of a file that is read has a
line, and a duplicate key is an error."""

from pathlib import Path
from typing import Any

import yaml

from aiperf_svc.domain.errors import ConfigError

# The parser and the emitter in C are ten times faster; they need libyaml.
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ESCAPE = "\\U"
"""What libyaml writes for an emoji, which is no longer readable."""


class _DuplicateKey(yaml.MarkedYAMLError):
    pass


class _Loader(_Safe):  # type: ignore[misc]
    """The safe loader, which also refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[object, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            # A key may itself be a list or a mapping; the loader refuses those by itself.
            if isinstance(key, str) and seen.setdefault(key, line) != line:
                raise _DuplicateKey(
                    problem=f"{key!r} is given twice, first in line {seen[key]}",
                    problem_mark=key_node.start_mark,
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read a YAML or JSON file. Raises ConfigError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: {_reason(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def yaml_text(data: Any) -> str:
    """Return plain data as YAML, in its own order. It is the same text with libyaml and without,
    but for where texts with control characters are folded."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if _ESCAPE in text:
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def _reason(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, _DuplicateKey):
        return f"{error.problem}; remove one of them"
    context = f" ({error.context})" if error.context else ""
    return f"not valid YAML: {error.problem}{context}"
