"""Random pools: selection, composition, and rejected pools."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.datasets.builder import build_dataset
from aiperf_svc.adapters.datasets.checks import check_dataset
from aiperf_svc.adapters.datasets.files import read_pools
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.built import BuiltDataset
from aiperf_svc.core.datasets.media import noise_pixels, png_of
from aiperf_svc.core.datasets.random_pool import draw
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import DatasetError

Config = Callable[..., BenchmarkConfig]


def pool(path: Path, *lines: Any) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def prompts(path: Path, count: int = 1, seed: int = 0) -> list[Prompt]:
    return [entry.turns[0].prompt for entry in draw(read_pools(path), count, seed)]


def test_lines_are_drawn_with_replacement_and_equal_chance(tmp_path: Path) -> None:
    pool(tmp_path / "a.jsonl", *({"text": str(i)} for i in range(8)), "plain")
    drawn = Counter(prompt.texts for prompt in prompts(tmp_path / "a.jsonl", 9_000))
    # Each of nine lines is drawn about 1,000 times. Five standard deviations are 149.
    assert len(drawn) == 9
    assert max(abs(count - 1_000) for count in drawn.values()) < 150


def test_first_entries_depend_on_the_seed_only(tmp_path: Path) -> None:
    pool(tmp_path / "a.jsonl", *({"text": str(i)} for i in range(100)))
    few = prompts(tmp_path / "a.jsonl", 5)
    assert prompts(tmp_path / "a.jsonl", 50)[:5] == few
    assert prompts(tmp_path / "a.jsonl", 5, seed=1) != few


def test_request_has_a_line_of_each_file(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png_of(noise_pixels(2, 2, np.random.default_rng(1))))
    pool(tmp_path / "1-texts.jsonl", {"text": "a", "output_length": 7, "id": "x"})
    pool(tmp_path / "2-more.jsonl", {"texts": ["b", "c"], "id": "y"})
    pool(tmp_path / "3-pictures.jsonl", {"image": "x.png"}, {"images": ["x.png"]})
    (tmp_path / "notes.txt").write_text("not a pool")
    (prompt,) = prompts(tmp_path)
    assert (prompt.texts, prompt.output_tokens) == (("a", "b", "c"), 7)
    assert [media.reference for media in prompt.media] == ["x.png"]


def test_query_and_passage_files_form_a_ranking(tmp_path: Path) -> None:
    pool(tmp_path / "q.jsonl", {"texts": [{"name": "query", "contents": ["q"]}]})
    pool(tmp_path / "p.jsonl", {"texts": [{"name": "passages", "contents": ["a", "b"]}]})
    pool(tmp_path / "r.jsonl", {"texts": [{"name": "passages", "contents": ["c"]}]})
    (prompt,) = prompts(tmp_path)
    assert (prompt.texts, prompt.passages) == (("q",), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"text": "a"}, {"x": 1}], "a.jsonl:2: needs exactly one prompt, found none"),
        ([{"text": 5}], r"a.jsonl:1: Expected `str"),
        ([], "a.jsonl: no entries; a pool needs at least one line"),
        ([{"text": "a", "image": "gone.png"}], "a.jsonl:1: gone.png: No such file"),
    ],
)
def test_invalid_line_is_found_before_the_start(
    tmp_path: Path, config: Config, lines: list[Any], message: str
) -> None:
    pool(tmp_path / "a.jsonl", *lines)
    dataset = {"kind": "random_pool", "file": str(tmp_path / "a.jsonl")}
    with pytest.raises(DatasetError, match=message):
        check_dataset(config(dataset=dataset))


def test_incompatible_pool_files_are_refused(tmp_path: Path, config: Config) -> None:
    pool(tmp_path / "a.jsonl", {"text": "a", "output_length": 1})
    benchmark = config(dataset={"kind": "random_pool", "file": str(tmp_path)})
    for line, words in (
        ({"messages": [{"role": "user", "content": "x"}]}, "`messages` is a whole prompt"),
        ({"text": "b", "output_length": 2}, "`output_length` is in several of the lines"),
    ):
        pool(tmp_path / "b.jsonl", line)
        with pytest.raises(DatasetError, match=words):
            check_dataset(benchmark)


def test_a_folder_without_pools_is_named(tmp_path: Path, config: Config) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DatasetError, match=r"is a folder without files of \.jsonl"):
        check_dataset(config(dataset={"kind": "random_pool", "file": str(tmp_path)}))


async def test_warmup_has_separate_entries(tmp_path: Path, config: Config) -> None:
    pool(tmp_path / "a.jsonl", *({"text": str(i)} for i in range(3)))
    dataset = {"kind": "random_pool", "file": str(tmp_path), "entries": 20}
    load = {"concurrency": 1, "requests": 1, "warmup": {"requests": 5}}
    built = await build_dataset(config(dataset=dataset, load=load))
    assert isinstance(built, BuiltDataset)
    assert (built.entry_count, built.warmup_entries) == (25, 5)
    assert built.report.distinct_entries == 3
