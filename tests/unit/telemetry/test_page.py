"""The parser of Prometheus pages is compared with prometheus_client's, on valid and mutated pages
of real servers."""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.core.telemetry.page import PageError, PageReader, Series

prometheus = pytest.importorskip("prometheus_client.parser")

PAGES = sorted((Path(__file__).parents[2] / "data/telemetry").glob("*.txt"))
PART = 60
"""Number of lines of a mutated page, because prometheus_client is slow."""
LEGAL = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
Found = dict[tuple[str, frozenset[tuple[str, str]]], str]


def _name(name: str) -> str:
    """Return a name without `_total`, which prometheus_client appends to counters without it."""
    return name.removesuffix("_total")


def _theirs(text: str) -> Found | None:
    found: Found = {}
    try:
        for family in prometheus.text_string_to_metric_families(text):
            for sample in family.samples:
                if not LEGAL.fullmatch(sample.name):
                    return None  # It accepts any name before labels; the format does not.
                key = _name(sample.name), frozenset(sample.labels.items())
                found[key] = repr(float(sample.value) + 0.0)
    except (ValueError, IndexError):
        return None
    return found or None


def _ours(text: str, reader: PageReader) -> Found | None:
    try:
        page = reader.read(text)
    except PageError:
        return None
    return {
        (_name(series.name), frozenset(series.labels)): repr(value + 0.0)
        for series, value in page.values.items()
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_samples_equal_prometheus_clients(path: Path) -> None:
    text, reader = path.read_text(), PageReader()
    first = _ours(text, reader)
    assert first == _theirs(text)
    assert first is not None
    assert len(first) >= 9
    assert _ours(text, reader) == first  # now with cached lines


Mutation = Callable[[list[str], random.Random], None]


def _any_line(lines: list[str], rng: random.Random) -> int:
    return rng.randrange(len(lines))


def _cut(lines: list[str], rng: random.Random) -> None:
    at = _any_line(lines, rng)
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]


def _delete(lines: list[str], rng: random.Random) -> None:
    at = _any_line(lines, rng)
    place = rng.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + lines[at][place + 1 :]


def _insert(lines: list[str], rng: random.Random) -> None:
    at = _any_line(lines, rng)
    place = rng.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + rng.choice(' \t0.eE+-x<"\\') + lines[at][place:]


def _value(lines: list[str], rng: random.Random) -> None:
    at = _any_line(lines, rng)
    # prometheus_client parses a line that is only "NaN" as a sample named Na.
    if lines[at] and not lines[at].startswith("#"):
        values = ["NaN", "+Inf", "-Inf", "1e400", "-0", "1_000", "0x10", "12 1700000000000", ""]
        lines[at] = lines[at].rpartition(" ")[0] + " " + rng.choice(values)


def _label(lines: list[str], rng: random.Random) -> None:
    at = _any_line(lines, rng)
    value = rng.choice(['a\\"b', "a\\\\", "a\\nb", "a b", "}", "{", ",", "=", "#", "é", ""])
    if "{" in lines[at] and not lines[at].startswith("#"):
        lines[at] = lines[at].replace("{", f'{{zz="{value}",', 1)


def _space(lines: list[str], rng: random.Random) -> None:
    at = _any_line(lines, rng)
    lines[at] = rng.choice(["", " ", "\t"]) + lines[at].replace(" ", "  ", 1) + rng.choice(" \t\r")


def _swap(lines: list[str], rng: random.Random) -> None:
    a, b = _any_line(lines, rng), _any_line(lines, rng)
    lines[a], lines[b] = lines[b], lines[a]


MUTATIONS: tuple[Mutation, ...] = (_cut, _delete, _insert, _value, _label, _space, _swap)


PAGES_READ = 500
"""If one page in a hundred is parsed differently, these pages show it with a probability of 99%."""


def test_mutated_pages_are_read_as_by_prometheus_client() -> None:
    rng = random.Random(19)
    texts = {path.stem: path.read_text() for path in PAGES}
    readers = {name: PageReader() for name in texts}
    refused = 0
    for number in range(PAGES_READ):
        name = rng.choice(sorted(texts))
        whole = texts[name].splitlines()
        begin = rng.randrange(max(1, len(whole) - PART))
        lines = whole[begin : begin + PART]
        for mutate in rng.choices(MUTATIONS, k=rng.randrange(1, 4)):
            mutate(lines, rng)
        text = "\n".join(lines)
        theirs, ours = _theirs(text), _ours(text, readers[name])
        changed = [a for a, b in zip(lines, whole[begin : begin + PART], strict=True) if a != b]
        assert ours == theirs, (number, name, changed)
        refused += ours is None
    assert 0.1 < refused / PAGES_READ < 0.9


def test_cached_lines_are_parsed_five_times_as_fast() -> None:
    text = "".join(
        f'vllm:bucket{{engine="{n % 8}",model_name="m",le="{n}"}} {n * 17}.5\n' for n in range(2000)
    )
    reader = PageReader()
    reader.read(text)

    def cost(read: Callable[[], object]) -> float:
        started = time.process_time()
        read()
        return time.process_time() - started

    ours = min(cost(lambda: reader.read(text)) for _ in range(5))
    theirs = min(
        cost(lambda: list(prometheus.text_string_to_metric_families(text))) for _ in range(5)
    )
    assert 5 * ours < theirs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html><body>Not Found</body></html>", "line 1 is not a sample: <html>"),
        ("up 1\n<p>", "line 2 is not a sample: <p>"),
        ("", "the page has no samples"),
        ("# HELP up Whether it is.\n", "the page has no samples"),
        ('{"status": "ok"}', "line 1 is not a sample"),
        ("x" * 500, "line 1 is not a sample: " + "x" * 60 + "…"),
    ],
)
def test_invalid_page_names_its_first_bad_line(text: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        PageReader().read(text)


def test_types_and_the_oldest_timestamp_are_read() -> None:
    page = PageReader().read("# TYPE up gauge\nup 1 2000\ndown 0 1000\n")
    assert page.types == {"up": "gauge"}
    assert page.oldest_ms == 1000
    assert page.values[Series("up")] == 1.0


def test_timestamps_of_openmetrics_are_seconds() -> None:
    page = PageReader().read("up 1 1795227878.25\nslow 1 1795227878.5\n# EOF\n")
    assert page.oldest_ms == 1795227878250


def test_timestamp_without_a_valid_time_is_ignored() -> None:
    page = PageReader().read("up 1 -1e308\nslow 1 2.5\n# EOF\n")
    assert page.oldest_ms == 2500
