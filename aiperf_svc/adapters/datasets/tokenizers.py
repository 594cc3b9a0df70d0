"""Token counts by the `tokenizers` library, which is loaded only when a tokenizer is configured.

A chat template is in `chat_template.jinja` or `tokenizer_config.json` beside the tokenizer, and is
rendered as in `transformers`. It is untrusted, so it runs in a sandbox with limits.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from aiperf_svc.adapters.datasets import hub_files
from aiperf_svc.adapters.datasets.hub_files import HubRefused, HubUnreachable
from aiperf_svc.config import dataset as config
from aiperf_svc.config.templates import TooCostly, sandbox, within_limits
from aiperf_svc.config.user_files import read_file, read_text_file
from aiperf_svc.core.datasets.base import ChatTemplate
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

TEMPLATE_FILE: Final = "chat_template.jinja"
CONFIG_FILE: Final = "tokenizer_config.json"
MAX_BYTES: Final = 16 * 2**20
"""Maximum size of a file: the configs of tokenizers have up to a megabyte."""
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token")

FindFile = Callable[[str], Path | None]
"""Function that returns the file with this name next to the tokenizer, or None."""


def load_chat_template(name: str, find: FindFile) -> ChatTemplate:
    """Return the template of the tokenizer `name`. Raises ConfigError if it has none or an invalid
    one."""
    found = find(CONFIG_FILE)
    try:
        settings = json.loads(read_file(found, MAX_BYTES)) if found is not None else {}
        text = _own_file(find) or _named(settings.get("chat_template"))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"tokenizer.apply_chat_template: {found}: {error}") from error
    if not text:
        raise ConfigError(
            f"tokenizer.apply_chat_template: {name!r} has no chat template; expected one in "
            f"{TEMPLATE_FILE} or {CONFIG_FILE} beside its tokenizer.json, or leave this out"
        )
    special = {key: _token(settings.get(key)) for key in _SPECIAL}
    return _rendering(name, text, special)


def _own_file(find: FindFile) -> str:
    found = find(TEMPLATE_FILE)
    return read_text_file(found, MAX_BYTES) if found is not None else ""


def _named(value: Any) -> str:
    """Return the default template of several named ones, or the only one."""
    if isinstance(value, list):
        named = {str(each.get("name")): str(each.get("template")) for each in value}
        return named.get("default") or next(iter(named.values()), "")
    return value if isinstance(value, str) else ""


def _token(value: Any) -> str:
    """Return a special token, which may be stored as an object."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _rendering(name: str, text: str, special: Mapping[str, str]) -> ChatTemplate:
    import jinja2
    import jinja2.ext

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, which marks a model's output for training. Renders its content."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda shape: datetime.now().astimezone().strftime(shape)
    try:
        template = within_limits(lambda: environment.from_string(text))
    except (jinja2.TemplateError, TooCostly) as error:
        raise _refused(name, error) from error

    def rendered(
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = {},
    ) -> str:
        try:
            return within_limits(
                lambda: template.render(
                    {
                        **special,
                        "messages": messages,
                        "tools": tools,
                        "documents": None,
                        "add_generation_prompt": add_generation_prompt,
                        **variables,
                    }
                )
            )
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise _refused(name, error) from error

    return rendered


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _refused(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"tokenizer.apply_chat_template: the chat template of {name!r}: {one_line(str(error))}; "
        "leave this out to count only the texts"
    )


_PANICS: Final = "pyo3_runtime"
"""Module of the exceptions into which Rust panics are translated."""
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _without_panics(method: _Method) -> _Method:
    """Raise ConfigError if the library panics in a method. A panic is a BaseException: it would end
    the process instead of failing the single request."""

    @wraps(method)
    def call(counter: "LibraryTokenCounter", value: Any) -> Any:
        try:
            return method(counter, value)
        except BaseException as error:
            if type(error).__module__ != _PANICS:
                raise
            raise ConfigError(
                f"tokenizer.name: {counter.name!r} panicked: {one_line(str(error))}; use another "
                "version of it"
            ) from error

    return cast(_Method, call)


_BATCH = 128
"""Number of texts encoded at a time: an encoding needs 40 times the memory of its text."""
_FILE = hub_files.FILE
_REMEDY = "give the path of a tokenizer.json file, or of a folder that holds one"
_OTHERS = "or leave tokenizer.name out and count by the server's usage"
SERVICE_RETRY_S = 20.0
"""Time for which a service retries: a pod's network may open after the pod has started."""
RUNNER_RETRY_S = 3.0
"""Time for which the runner retries."""


class LibraryTokenCounter:
    """A TokenCounter that uses `tokenizers.Tokenizer` without special tokens or padding."""

    def __init__(self, name: str, tokenizer: Any, template: ChatTemplate | None = None) -> None:
        # A file may configure truncation or padding of inputs, which would falsify counts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.name = name
        self._tokenizer = tokenizer
        self.template = template

    @_without_panics
    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    @_without_panics
    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """Tokens without offsets, which saves a third of the time."""
        counts: list[int] = []
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            counts += map(len, encodings)
        return counts

    @_without_panics
    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @_without_panics
    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def load_token_counter(
    options: config.Tokenizer, *, is_for_prompts: bool = False
) -> LibraryTokenCounter | None:
    """Return the configured tokenizer, or None if there is none; with its chat template if
    configured.

    The name of an existing file or folder is a path; any other name is looked up in the hub's cache
    on this machine, then on the hub. Raises ConfigError if none of these has a tokenizer.
    """
    if options.name is None:
        return None
    file = _local_file(options.name)
    if file is None:
        name, revision = options.name, options.revision
        file = hub_files.cached_file(name, revision) or _fetched(options, SERVICE_RETRY_S)
    has_template = is_for_prompts and options.apply_chat_template
    template = _chat_template(options) if has_template else None
    return LibraryTokenCounter(options.name, _from_file(file), template)


def resolve_tokenizer(options: config.Tokenizer) -> str:
    """Find and read the configured tokenizer before anything starts, within seconds. Return a
    notice for the user, usually empty.

    The hub is asked even if its cache holds the file, because a revision may move. If the hub
    cannot be reached, the cached file is used. Raises ConfigError.
    """
    if options.name is None:
        return ""
    notice, file = "", _local_file(options.name)
    if file is None:
        try:
            file = _fetched(options, RUNNER_RETRY_S)
        except ConfigError as error:
            file = hub_files.cached_file(options.name, options.revision)
            if file is None or not isinstance(error.__cause__, HubUnreachable):
                raise
            reason = one_line(str(error.__cause__))
            notice = f"tokenizer.name: {options.name!r} is the cache's: {reason}"
    _from_file(file)
    if options.apply_chat_template:
        _chat_template(options)
    return notice


def _chat_template(options: config.Tokenizer) -> ChatTemplate:
    """Return the template of the configured tokenizer. Raises ConfigError."""
    name = str(options.name)
    path = existing_path(name)

    def find_file(file: str) -> Path | None:
        if path is not None:
            found = (path if path.is_dir() else path.parent) / file
            return found if found.is_file() else None
        try:
            cached = hub_files.cached_file(name, options.revision, file)
            return cached or hub_files.fetch_from_hub(name, options.revision, file)
        except HubRefused:  # it has no such file
            return None
        except HubUnreachable as error:
            raise _not_found(
                options, f"cannot be reached: {error}", "let this machine reach the hub"
            ) from error

    return load_chat_template(name, find_file)


def hub_name(options: config.Tokenizer) -> str | None:
    """Return the name if it refers to the hub; None for paths."""
    name = options.name
    return None if name is None or config.is_path(name) or existing_path(name) else name


def existing_path(name: str) -> Path | None:
    """Return the file or folder of this name; None if there is none."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # the name is too long, or there is no home folder
        return None


def _local_file(name: str) -> Path | None:
    """Return the file if the name is a path; None if it refers to the hub. Raises ConfigError."""
    path = existing_path(name)
    if path is None and config.is_path(name):
        raise ConfigError(f"tokenizer.name: there is no file {name}; {_REMEDY}")
    if path is None:
        return None
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"tokenizer.name: the folder {path} holds no {_FILE}; {_REMEDY}")
    return file


def _fetched(options: config.Tokenizer, timeout_s: float) -> Path:
    """Return the hub's file after a quick check that it exists. Raises ConfigError."""
    name, revision = str(options.name), options.revision
    try:
        hub_files.find_on_hub(name, revision, timeout_s=timeout_s)
        return hub_files.fetch_from_hub(name, revision)
    except HubRefused as error:
        verb, remedy = "does not give it", "correct the name (a private one needs HF_TOKEN)"
        raise _not_found(options, f"{verb}: {one_line(str(error))}", remedy) from error
    except HubUnreachable as error:
        reason = f"cannot be reached: {one_line(str(error))}"
        raise _not_found(options, reason, "let this machine reach the hub") from error


def _not_found(options: config.Tokenizer, reason: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"tokenizer.name: {options.name!r} (revision {options.revision}): no file or folder has "
        f"this name here, and the hub {hub_files.hub_address()} {reason}; {remedy}, {_REMEDY}, "
        f"{_OTHERS}"
    )


def _from_file(file: Path) -> Any:
    try:
        return _tokenizer_class().from_file(str(file))
    except Exception as error:  # the library raises plain Exception for every fault of a file
        raise ConfigError(
            f"tokenizer.name: {file} is not a tokenizer: {one_line(str(error))}; {_REMEDY}"
        ) from error


def _tokenizer_class() -> Any:
    # One thread for each process: the processes of a run already use all cores, and a thread pool
    # would compete with the processes that take timestamps.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    return Tokenizer
