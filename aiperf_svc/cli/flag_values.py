"""Converts the text of a flag to the value of a config key.

Only values with their own syntax and addresses without a scheme are converted; all other text is
passed to the config unchanged. All functions raise ValueError that describes the expected value.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiperf_svc.config.user_files import SMALL_FILE, read_text_file

_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"
_LENGTH = rf"{_NUMBER}(?:\|{_NUMBER})?"
_SHAPE = re.compile(rf"{_LENGTH},{_LENGTH}:{_NUMBER}")
_NAMED_TEMPLATES = {"nv-embedqa": '{"text": {{ texts|tojson }}}'}
_OBJECTIVE = re.compile(r"\s*([a-z0-9_]+)(?::([a-z0-9]+))?\s*(<=?|>=?)\s*(.+?)\s*")


def url(text: str) -> str:
    """Return a URL; `localhost:8000` means `http://localhost:8000`."""
    return text if "://" in text else f"http://{text}"


def enabled(is_on: bool) -> dict[str, object] | None:
    """Return the section of a config that a switch enables with its defaults."""
    return {} if is_on else None


def word(text: str) -> str:
    """Return a name of several words, which AIPerf also joins with hyphens."""
    return text.replace("-", "_")


def names(text: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in text.split(",")]


def all_names(texts: Sequence[str]) -> list[str]:
    """Return the names in several texts, each with names separated by commas."""
    return [name for text in texts for name in names(text)]


def model_selection(text: str) -> str:
    """Return how models are chosen; AIPerf calls a random choice by weights `weighted`."""
    return "random" if text == "weighted" else word(text)


def tags(texts: Sequence[str]) -> dict[str, str]:
    """Return tags from texts `key:value`."""
    return dict(_pair(text, "`key:value`") for text in texts)


def pages(texts: Sequence[str]) -> list[str]:
    """Return addresses of metrics pages."""
    return [url(text) for text in texts]


def gpu_pages(texts: Sequence[str]) -> list[str]:
    """Return addresses of GPU exporters' metrics pages."""
    if "pynvml" in texts:
        raise ValueError("'pynvml' is not a page; use --nvml all for the GPUs of this machine")
    return pages(texts)


def headers(texts: Sequence[str]) -> dict[str, str]:
    """Return headers by name from texts `Name: value`."""
    return dict(_pair(text, "`Name: value`") for text in texts)


def extra_inputs(texts: Sequence[str]) -> dict[str, object]:
    """Return members of a request's body from texts `key:value` or JSON objects. A value is parsed
    as JSON if possible: `temperature:0.7` is a number, `stop:null` null, `user:me` text."""
    found: dict[str, object] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except ValueError as error:
                raise ValueError(f"{text!r}: not valid JSON: {error}") from error
            continue
        key, value = _pair(text, "`key:value` or a JSON object")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _pair(text: str, expected: str) -> tuple[str, str]:
    """Return the name before the first colon and the value after it."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"{text!r}: expected {expected}")
    return name.strip(), value.strip()


def template(text: str) -> str:
    """Return the text of a template, which may be a file, or one of AIPerf's named templates."""
    if text in _NAMED_TEMPLATES:
        return _NAMED_TEMPLATES[text]
    if "{" in text:
        return text
    try:
        return read_text_file(Path(text), SMALL_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{text!r}: neither a template, with braces, nor a file: {reason}"
        ) from None


def dataset_order(text: str) -> str:
    """Return an order of prompts; AIPerf calls a shuffled order `shuffle`."""
    return {"shuffle": "shuffled"}.get(text, text)


def objectives(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return objectives from texts `metric:statistic<limit`, by default of the average."""
    found = []
    for text in texts:
        match = _OBJECTIVE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r}: expected a limit such as time_to_first_token:p99<500ms")
        metric, stat, sign, limit = match.groups()
        bound = "max" if sign.startswith("<") else "min"
        found.append({"metric": metric, "stat": stat or "avg", bound: limit})
    return found


def mix(text: str) -> list[dict[str, object]]:
    """Return kinds of requests from `ISL,OSL:WEIGHT` texts that are separated by semicolons."""
    found: list[dict[str, object]] = []
    for part in text.split(";"):
        match = _SHAPE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r}: expected `ISL,OSL:WEIGHT`, such as 256,128:60")
        isl, isl_spread, osl, osl_spread, weight = match.groups()
        shape: dict[str, object] = {"weight": float(weight)}
        for key, mean, spread in (
            ("input_tokens", isl, isl_spread),
            ("output_tokens", osl, osl_spread),
        ):
            shape[key] = {"mean": float(mean)} | ({"stddev": float(spread)} if spread else {})
        found.append(shape)
    return found


def sample_rates(texts: Sequence[str]) -> list[object]:
    """Return sample rates in Hz; AIPerf's are in kHz."""
    return [_sample_rate(text) for text in _separated(texts)]


def _sample_rate(text: str) -> object:
    try:
        rate = float(text)
    except ValueError:
        return text
    return round(rate * 1000) if rate < 1000 else round(rate)


def whole_numbers(texts: Sequence[str]) -> list[object]:
    """Return whole numbers."""
    return [int(text) if text.isdecimal() else text for text in _separated(texts)]


def _separated(texts: Sequence[str]) -> list[str]:
    """Return values that are separated by spaces or commas."""
    return " ".join(texts).replace(",", " ").split()


def image_source(text: str) -> str | None:
    """Return the folder of images. AIPerf calls noise a source, and comes with its own images."""
    if text == "assets":
        raise ValueError(
            "'assets': AIPerf's own images are not part of this program; expected a folder"
        )
    return None if text == "noise" else text


def file_sampling(text: str) -> str:
    """Return how files of a folder are chosen, from this program's or AIPerf's name."""
    names = {
        "random-with-replacement": "random",
        "shuffle-cycle": "shuffled",
        "sequential-cycle": "sequential",
    }
    return names.get(text.replace("_", "-"), text)


def goodput(texts: Sequence[str]) -> dict[str, str]:
    """Return limits by metric from texts with one or several `metric:limit`."""
    found: dict[str, str] = {}
    for text in " ".join(texts).split():
        metric, _, limit = text.partition(":")
        if not metric or not limit:
            raise ValueError(f"{text!r}: expected a limit such as time_to_first_token:500ms")
        found[metric] = limit
    return found


def goodput_tiers(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return sets of limits by name from texts `NAME=metric:limit metric:limit`."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, limits = text.partition("=")
        if not equals or not name or not limits.strip():
            raise ValueError(f"{text!r}: expected a tier such as gold=time_to_first_token:200ms")
        if name in found:
            raise ValueError(f"{name!r} is given twice; give each tier once")
        found[name] = goodput([limits])
    return found


def stages(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return the stages of a load from texts `RATE:TIME`."""
    found = []
    for text in _separated(texts):
        rate, _, duration = text.partition(":")
        if not rate or not duration:
            raise ValueError(f"{text!r}: expected RATE:TIME such as 10:30s")
        found.append({"rate": rate, "duration": duration})
    return found


def bursts(text: str) -> dict[str, str]:
    """Return bursts from a text `RATE:LENGTH/EVERY`."""
    rate, _, times = text.partition(":")
    length, _, every = times.partition("/")
    if not rate or not length or not every:
        raise ValueError(f"{text!r}: expected RATE:LENGTH/EVERY such as 200:5s/1m")
    return {"rate": rate, "length": length, "every": every}


RATE_SERIES_BYTES = 16 * 2**20
"""Maximum size of a file with a changing rate."""


def rate_series(file: str) -> list[dict[str, str]]:
    """Return the points of a changing rate from a CSV file, whose first line may be a header, or
    from AIPerf's JSON."""
    try:
        text = read_text_file(Path(file), RATE_SERIES_BYTES, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ValueError(f"{file}: cannot be read: {reason}") from error
    if text.lstrip().startswith(("[", "{")):
        return _rate_points(file, text)
    found: list[dict[str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""]:
            continue
        try:
            if len(fields) != 2:
                raise ValueError
            at, rate = map(float, fields)
        except ValueError:
            if number == 1 and len(fields) == 2:
                continue
            raise ValueError(
                f"{file}:{number}: {line!r}: expected SECONDS,RATE such as 60,12.5"
            ) from None
        found.append({"at": f"{at:.9f}s", "rate": f"{rate:g}"})
    return found


def _rate_points(file: str, text: str) -> list[dict[str, str]]:
    expected = 'expected [{"time_s": 0, "qps": 10}, ...], or this as "points"'
    try:
        data = json.loads(text)
        points = data["points"] if isinstance(data, dict) else data
        return [{"at": f"{p['time_s']:.9f}s", "rate": f"{p['qps']:g}"} for p in points]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{file}: {expected}") from None


def milliseconds(text: str) -> str:
    """Return a time; a number without a unit is in milliseconds, as in traces and in AIPerf."""
    return _with_unit(text, "ms")


def percent(text: str) -> str:
    """Return a share; a number without a unit is in per cent."""
    return _with_unit(text, "%")


def _with_unit(text: str, unit: str) -> str:
    try:
        float(text)
    except ValueError:
        return text
    return f"{text}{unit}"


def values(text: str) -> list[Any]:
    """Return the values of `A,B,C`, each parsed as in a config; lists need brackets."""
    # Imported here because it would slow down `--help`.
    import yaml

    from aiperf_svc.config.yaml_files import parse_yaml

    is_listed = text.startswith("[[")
    try:
        found = parse_yaml(text if is_listed else f"[{text}]")
    except yaml.YAMLError:
        found = None
    if not isinstance(found, list) or None in found:
        raise ValueError(f"{text!r}: expected values with commas between them, such as 1,2,4")
    return found


def sweeps(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return values by key from texts `KEY=A,B,C`."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, listed = text.partition("=")
        if not sign or not key.strip() or not listed.strip():
            raise ValueError(f"{text!r}: expected KEY=VALUES such as load.concurrency=1,2,4")
        found[key.strip()] = values(listed)
    return found


def trial_order(text: str) -> str:
    """Return an order of trials. AIPerf calls the orders `repeated` and `independent`."""
    return {"repeated": "interleaved", "independent": "grouped"}.get(text, text)


def search(text: str) -> dict[str, Any]:
    """Return a search from a text `KEY=FROM..TO`."""
    key, sign, between = text.partition("=")
    start, dots, end = between.partition("..")
    if not (sign and key.strip() and dots and start.strip() and end.strip()):
        raise ValueError(f"{text!r}: expected KEY=FROM..TO such as load.request_rate=1..1000")
    return {"parameter": key.strip(), "from": values(start)[0], "to": values(end)[0]}
