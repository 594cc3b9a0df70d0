"""The mistakes in a config, described for the user who corrects them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.names import keys_at, keys_named, nearest_key, type_at
from aiperf_svc.domain.name_suggestions import did_you_mean

_KEY_NAME = re.compile(r"\{([a-z][a-z0-9_.]*)\}")
_MAX_ALTERNATIVES = 3
"""Maximum alternative places of a key in a message."""
_MAX_KEYS = 20
"""Maximum keys that an error lists."""
_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""Name and password in a URL."""
_SHOWN = 60
"""Maximum characters of a value that a message repeats."""

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "some text",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "a longer list",
}
_LIMITS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("of at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("of at most", "le"),
}
_PATTERNS = {
    r"^s3://": "a bucket and a prefix such as s3://bucket/prefix, without empty parts, . and ..",
    r"^https?://": "an address such as http://host:8000",
    r"^/": "a path that begins with / and has no spaces",
    r"^[\t": "one line of text",
    r"^[A-Za-z0-9_-]": "the name of a header",
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/": "a relative path of letters, digits, underscores, dots and "
    "hyphens, without ..",
    r"^[A-Za-z0-9]([A-Za-z0-9._-]": "at most 80 letters, digits, dots, underscores and hyphens, "
    "with a letter or digit at both ends",
    r"^[a-z0-9]([a-z0-9-]": "a name for Kubernetes: lowercase letters, digits and inner hyphens",
}


def _shortened(key: str) -> str:
    """Shorten the names in a dotted path that are longer than any key."""
    names = key.split(".")
    return ".".join(name if len(name) <= _SHOWN else name[:_SHOWN] + "…" for name in names)


@dataclass(frozen=True)
class Problem:
    """One mistake: the dotted path of the key, and a description."""

    key: str
    text: str
    names_keys: bool = False
    """True if `{name}` in the text is a placeholder for the key of that name below `key`."""

    def line(self, names: Mapping[str, str]) -> str:
        """Format the mistake as one line. `names` maps dotted paths to the user's names of these
        keys, such as `--isl`."""
        # Unprintable characters must not reach a terminal.
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in self._line(names))

    def _line(self, names: Mapping[str, str]) -> str:
        if not self.key and not self.names_keys:
            return self.text
        text = self.text
        if self.names_keys:
            prefix = f"{self.key}." if self.key else ""
            theirs = {name: names.get(prefix + name, "") for name in _KEY_NAME.findall(text)}
            text = _KEY_NAME.sub(lambda match: theirs[match[1]] or match[1], text)
            if not self.key or (theirs and all(theirs.values())):
                # The text already names all keys in the user's terms.
                return text
        return f"{self._called(names)}: {text}"

    def _called(self, names: Mapping[str, str]) -> str:
        key, parents = self.key, self.key
        while parents:
            if parents in names:
                return names[key] if key in names else f"{names[parents]} ({_shortened(key)})"
            parents = parents.rpartition(".")[0]
        return _shortened(key)


def problems_in(
    error: ValidationError, data: object, root: type[BaseModel] = BenchmarkConfig
) -> list[Problem]:
    """Return every mistake that the models below `root` found in `data`, once each."""
    found: dict[str, Problem] = {}
    unions: dict[str, list[str]] = {}
    for details in error.errors(include_url=False):
        if _counts_refused_members(details):
            continue
        path, is_member = _path(details["loc"], data, is_missing=details["type"] == "missing")
        key = ".".join(path)
        if is_member:
            # For a union of types, pydantic reports an error for each type.
            unions.setdefault(key, []).append(_EXPECTED.get(details["type"], "another value"))
            expected = " or ".join(dict.fromkeys(unions[key]))
            found[key] = Problem(key, f"{_shown(details['input'])}: expected {expected}")
        else:
            # A model's check involves several keys, a value's check only that value.
            is_combination = details["type"] == "value_error" and isinstance(
                details["input"], Mapping
            )
            problem = Problem(key, _text(details, path, root), names_keys=is_combination)
            found.setdefault(f"{key} {problem.text}", problem)
    return list(found.values())


def _counts_refused_members(details: ErrorDetails) -> bool:
    """Return True for a list that is long enough once its refused members are counted."""
    value, limits = details["input"], details.get("ctx", {})
    is_list = details["type"] == "too_short" and isinstance(value, list | tuple)
    return is_list and len(value) >= limits["min_length"]


def member_problems(
    members: Sequence[object], model: type[BaseModel], key: str = ""
) -> list[Problem]:
    """Return every mistake in the members of the list at `key`, which are validated by a model."""
    found = []
    for number, each in enumerate(members):
        try:
            model.model_validate(each)
        except ValidationError as error:
            for problem in problems_in(error, each, model):
                path = ".".join(filter(None, (key, str(number), problem.key)))
                found.append(replace(problem, key=path))
    return found


def problems_before_models(
    data: object, root: type[BaseModel] = BenchmarkConfig, path: tuple[str, ...] = ()
) -> list[Problem]:
    """Return the mistakes that the models would accept: `true` as a number, which they read as 1,
    and an encrypted value, which would be readable in every artifact."""
    if isinstance(data, Mapping):
        if set(data) == {"secure"}:
            text = "a secret must not be in this config; name its variable in"
            text = f"{text} endpoint.api_key_env and keep the value under aiperf:targetApiKey"
            return [Problem(".".join(path), text)]
        members = [((*path, str(key)), value) for key, value in data.items()]
    elif isinstance(data, list):
        members = [((*path, str(number)), value) for number, value in enumerate(data)]
    elif isinstance(data, bool) and _takes_number_only(type_at(path, root)):
        return [Problem(".".join(path), f"{_shown(data)}: expected a number")]
    else:
        return []
    return [p for below, value in members for p in problems_before_models(value, root, below)]


def _takes_number_only(annotation: Any) -> bool:
    """Return whether int or float is among the types, and bool is not."""
    types: list[Any] = [annotation]
    for found in types:
        types.extend(part for part in get_args(found) if isinstance(part, type) or get_args(part))
    return bool({int, float} & set(types)) and bool not in types


def _path(
    loc: Sequence[int | str], data: object, *, is_missing: bool
) -> tuple[tuple[str, ...], bool]:
    """Return the path of a mistake, and whether it concerns one member of a union of types. In that
    case its location ends with the type's name, which is not in the data."""
    path: list[str] = []
    for number, part in enumerate(loc):
        is_index = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if is_index or (isinstance(data, Mapping) and part in data):
            data = data[part]  # type: ignore[index]
        elif is_missing or part == "[key]":
            data = None
            if part == "[key]":
                continue
        else:
            return tuple(path), number == len(loc) - 1 and not isinstance(data, Mapping)
        path.append(str(part))
    return tuple(path), False


def _text(details: ErrorDetails, path: Sequence[str], root: type[BaseModel]) -> str:
    kind, value = details["type"], details["input"]
    context: dict[str, Any] = details.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown_key(path, value, root)
    if kind == "missing":
        return "must be given"
    if kind == "value_error":
        # A model's check names the keys in its message; a value's check does not.
        reason = str(context["error"])
        return reason if isinstance(value, Mapping) else f"{_shown(value)}: {reason}"
    return f"{_shown(value)}: {_expected(details, context)}"


def _expected(details: ErrorDetails, context: Mapping[str, Any]) -> str:
    kind = details["type"]
    if kind in ("literal_error", "enum"):
        valid = [name.strip("' ") for name in context["expected"].replace(" or ", ", ").split(",")]
        return f"expected {_alternatives(valid)}{did_you_mean(str(details['input']), valid)}"
    if kind in _LIMITS:
        word, name = _LIMITS[kind]
        limit = context[name]
        return f"expected a number {word} {int(limit) if limit == int(limit) else limit:,}"
    if kind == "string_pattern_mismatch":
        if _USERINFO.search(str(details["input"])):
            return "expected no name or password: every copy of the config would contain it"
        for beginning, text in _PATTERNS.items():
            if context["pattern"].startswith(beginning):
                return f"expected {text}"
        return f"expected text that matches {context['pattern']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}"
    message = details["msg"].replace("Input should be", "expected")
    return message[:1].lower() + message[1:]


def _unknown_key(path: Sequence[str], value: object, root: type[BaseModel]) -> str:
    close = nearest_key(path, root)
    if close == path[-1].replace("-", "_") and len(path) > 1:
        # Name the place where it was written, and other places that have such a key.
        places = [f"{close} (beside {path[0]})", *keys_named(close, root)[1:_MAX_ALTERNATIVES]]
        hint = f"; did you mean {_alternatives(places)}?"
    elif close:
        hint = f"; did you mean {close}?"
    else:
        valid = keys_at(path[:-1], root)
        more = len(valid) - _MAX_KEYS
        if more > 0:
            valid = (*valid[:_MAX_KEYS], f"one of {more} others")
        hint = f"; expected {_alternatives(valid)}" if valid else ""
    return f"unknown key (value {_shown(value)}){hint}"


def _alternatives(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "nothing" if value is None else _USERINFO.sub("***@", repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
