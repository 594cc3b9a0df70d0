"""Chat templates of tokenizers, rendered as `transformers` renders them.

A template is in `chat_template.jinja` or `tokenizer_config.json` beside the tokenizer. It is data
from elsewhere, so it runs in a sandbox with limits.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from aiperf_svc.config.templates import TooCostly, sandbox, within_limits
from aiperf_svc.config.user_files import read_file, read_text_file
from aiperf_svc.core.datasets.base import ChatTemplate
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

TEMPLATE_FILE: Final = "chat_template.jinja"
CONFIG_FILE: Final = "tokenizer_config.json"
MOST_BYTES: Final = 16 * 2**20
"""Largest file: the configs of tokenizers have up to a megabyte."""
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token")

FindFile = Callable[[str], Path | None]
"""Function from the name of a file beside the tokenizer to the file; None if there is none."""


def load_chat_template(name: str, find: FindFile) -> ChatTemplate:
    """Return the template of the tokenizer `name`. Raises ConfigError if it has none, or one that
    is not valid."""
    found = find(CONFIG_FILE)
    try:
        settings = json.loads(read_file(found, MOST_BYTES)) if found is not None else {}
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
    return read_text_file(found, MOST_BYTES) if found is not None else ""


def _named(value: Any) -> str:
    """Return the default one of several named templates, or the only one."""
    if isinstance(value, list):
        named = {str(each.get("name")): str(each.get("template")) for each in value}
        return named.get("default") or next(iter(named.values()), "")
    return value if isinstance(value, str) else ""


def _token(value: Any) -> str:
    """Return a special token, which may be written as an object."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _rendering(name: str, text: str, special: Mapping[str, str]) -> ChatTemplate:
    import jinja2
    import jinja2.ext

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, which says for training what the model wrote; its content stays."""

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
    ) -> str:
        try:
            return within_limits(
                lambda: template.render(
                    **special,
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                )
            )
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, TooCostly) as error:
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
        "leave this out to count the texts alone"
    )
