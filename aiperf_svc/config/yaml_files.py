"""Reads and writes the YAML of configs. JSON is YAML, too. Every read error has a line number, and
a duplicate key is an error.

The size of a text is checked before parsing: a few lines of aliases of aliases can expand to
billions of values, and deeply nested values overflow the stack of the C parser, which kills the
process.
"""

from pathlib import Path
from typing import Any

import yaml

from aiperf_svc.config.user_files import read_text_file
from aiperf_svc.domain.errors import ConfigError

# The parser and the emitter in C are ten times faster. They need libyaml.
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ESCAPE = "\\U"
"""Escape that libyaml writes for an emoji, which makes it unreadable."""
_ONE_LINE = 2**31 - 1
"""A width that no text reaches: libyaml's maximum."""


MAX_BYTES = 16 * 2**20
"""Size limit of a file: a hundred times the longest real config."""
MAX_LEVELS = 100
"""Maximum nesting of lists and mappings: configs have about ten levels."""
MAX_NUMBER_LENGTH = 1000
"""Maximum characters of a number. Reading `1:30:00` and the like takes quadratic time."""
MAX_ALIASED_VALUES = 100_000
"""Maximum number of values that all aliases of a text expand to."""


_TEXTS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Refused(yaml.MarkedYAMLError):
    """A mistake outside YAML's grammar. Its problem text includes the remedy."""


class _Documents(_Safe):  # type: ignore[misc]
    """The safe loader, which reads dates and `=` as text, like Kubernetes and JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class of the library
        first: [(tag, pattern) for tag, pattern in known if tag not in _TEXTS]
        for first, known in _Safe.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_LENGTH:
                raise ValueError(f"a number of {len(node.value):,} characters")
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            # For example a number of 5,000 digits.
            raise _Refused(problem=f"not a value: {error}", problem_mark=node.start_mark) from error


class _Loader(_Documents):
    """The loader of configs, which also refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[object, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            # A key may be a list or a mapping, which the loader itself refuses.
            if isinstance(key, str) and seen.setdefault(key, line) != line:
                text = f"{key!r} is given twice, first in line {seen[key]}; remove one of them"
                raise _Refused(
                    problem=text,
                    problem_mark=key_node.start_mark,
                )
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Parse the user's YAML or JSON. Raises yaml.YAMLError if it is invalid or too large."""
    _check_size(text)
    return yaml.load(text, _Loader)


def parse_documents(text: str) -> list[Any]:
    """Parse all documents of a text. Raises yaml.YAMLError if it is invalid or too large."""
    _check_size(text)
    return list(yaml.load_all(text, _Documents))


def _check_size(text: str) -> None:
    """Raise _Refused for a text with too many levels, or too many values in its aliases."""
    sizes: dict[str, int] = {}
    """Number of values that each anchor expands to."""
    opened: list[tuple[str | None, int]] = []
    """Anchor of each open list or mapping, and the number of values before it."""
    values = repeated = 0
    for event in yaml.parse(text, _Safe):
        anchor: Any = getattr(event, "anchor", None)
        mark: Any = event.start_mark
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((anchor, values))
            values += 1
            if len(opened) > MAX_LEVELS:
                problem = f"nested more than {MAX_LEVELS} levels deep; use fewer levels"
                raise _Refused(problem=problem, problem_mark=mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if anchor:
                sizes[anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == each for each, _ in opened):
                problem = f"the alias *{anchor} contains itself; write the values"
                raise _Refused(problem=problem, problem_mark=mark)
            size = sizes.get(anchor, 0)
            values += size
            repeated += size
            if repeated > MAX_ALIASED_VALUES:
                problem = (
                    f"the aliases up to *{anchor} stand for over {MAX_ALIASED_VALUES:,} values"
                )
                problem += "; repeat fewer"
                raise _Refused(problem=problem, problem_mark=mark)


def read_yaml(path: Path) -> Any:
    """Read a YAML or JSON file. Raises ConfigError with file and line."""
    try:
        text = read_text_file(path, MAX_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: {yaml_problem(error)}") from error


def yaml_text(data: Any) -> str:
    """Return plain data as YAML, in its own order. The text is the same with and without libyaml,
    except for the folding of texts with control characters."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if _ESCAPE in text:
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def yaml_line(data: Any) -> str:
    """Return plain data as one line of YAML."""
    text: str = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=_ONE_LINE,
    )
    return text.removesuffix("...\n").rstrip("\n")


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return the problem, without its location."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"not YAML: {error}"
    if isinstance(error, _Refused):
        return str(error.problem)
    context = f" ({error.context})" if error.context else ""
    return f"not valid YAML: {error.problem}{context}"
