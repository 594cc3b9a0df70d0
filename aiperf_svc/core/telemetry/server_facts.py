"""Servers' descriptions of themselves: version, arguments and settings, for `provenance.json`.

A server is identified by the prefix of its metrics. Only then is it queried at the path where such
servers describe themselves, so other servers get no unexpected requests. Values under names of
secrets are not kept.
"""

import hashlib
from typing import Any

import msgspec

from aiperf_svc.config.secret_names import is_secret_name
from aiperf_svc.core.telemetry.families import ENGINES, Engine
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.domain.foreign_text import one_line

HIDDEN = "***"
MAX_LENGTH = 200
"""Maximum characters of a value. A longer one, such as a chat template, becomes its checksum."""
_VERSION_KEYS = ("version", "build_info")
_NOT_ARGUMENTS = {"engine", "engine_type", "model_name"}
"""Labels of information metrics that identify the server instead of its setup."""


def engine_of(log: SourceLog) -> Engine | None:
    """Return the kind of a page's server; None if unknown."""
    names = [each.series.name for each in log.series]
    return next((e for e in ENGINES if any(name.startswith(e.prefix) for name in names)), None)


def stated_facts(text: str) -> dict[str, str]:
    """Return the version and the settings in a server's description of itself, by name. Lists and
    longer parts describe its current state, or repeat the settings."""
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    version = next((content.pop(key) for key in _VERSION_KEYS if key in content), None)
    found = {"engine_version": _shown(version)} if isinstance(version, str) and version else {}
    nested = content.pop("default_generation_settings", None)
    if isinstance(nested, dict) and "n_ctx" in nested:
        content["n_ctx"] = nested["n_ctx"]
    return found | {
        f"server.{one_line(name)}": HIDDEN if value and is_secret_name(name) else _shown(value)
        for name, value in content.items()
        if value is None or isinstance(value, str | int | float | bool)
    }


def information_facts(log: SourceLog) -> dict[str, str]:
    """Return the labels of a server's information metrics, such as `vllm:cache_config_info`."""
    engine = engine_of(log)
    found = {}
    for number, each in enumerate(log.series):
        name, labels = each.series
        if engine is None or not name.startswith(engine.prefix) or log.last(number) != 1:
            continue
        if name.endswith("_info"):
            group = name.removeprefix(engine.prefix).removesuffix("_info")
            for label, value in labels:
                if label not in _NOT_ARGUMENTS and not is_secret_name(label):
                    found[f"server.{group}.{label}"] = _shown(value)
    return found


def _shown(value: Any) -> str:
    if isinstance(value, str):
        if len(value) > MAX_LENGTH:
            return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}"
        return one_line(value)
    return msgspec.json.encode(value).decode()
