"""Every documented config and command line is valid as it stands."""

import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.cli.flag_config import read_workload_draft
from aiperf_svc.cli.main import COMMANDS, load_parser, main
from aiperf_svc.config.load_config import target_configs
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.trials import trial_configs
from tests.support.agent_traces import call, weka
from tests.support.documented import PAGES, ROOT, commands, yaml_blocks

BASE: dict[str, Any] = {
    "endpoint": {"url": "http://h:8000", "model": "m", "streaming": True},
    "load": {"concurrency": 1, "requests": 10},
}
"""Keys that complete a part of a config that a page shows by itself."""
REFUSED = ["--concurrency", "1,0"]
"""Examples that a page shows as invalid."""


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def examples() -> list[tuple[str, str]]:
    """Return page and text of each YAML block with a config."""
    found = [(ids(page), text) for page in PAGES for text in yaml_blocks(page)]
    return [(page, text) for page, text in found if "apiVersion:" not in text]


def whole(data: dict[str, Any]) -> dict[str, Any]:
    """Complete a part of a config with the keys that a page omits."""
    if "workload" in data:
        return data
    base = BASE
    if any("url" in target.get("endpoint", {}) for target in data.get("targets", ())):
        base = {**BASE, "endpoint": {"model": "m"}}
    if any("deployment" in target for target in data.get("targets", ())):
        base = stack("bench-fleet")
    if "fan_out: jobs" in yaml.safe_dump(data):
        base = stack("bench-variants")
    return {**base, **data, "endpoint": {**base["endpoint"], **data.get("endpoint", {})}}


def stack(name: str) -> dict[str, Any]:
    text = (ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["config"]["aiperf:benchmark"]
    return found


@pytest.mark.parametrize(("page", "text"), examples())
def test_every_config_of_the_pages_is_accepted(page: str, text: str, tmp_path: Path) -> None:
    data = yaml.safe_load(textwrap.dedent(text).replace("{…}", "{}"))
    name = "Pulumi.example.yaml" if "config" in data else "example.yaml"
    if "config" in data:
        config = data["config"]["aiperf:benchmark"] = whole(data["config"]["aiperf:benchmark"])
    else:
        data = config = whole(data)
    (tmp_path / name).write_text(yaml.safe_dump(data))
    assert main(["validate", str(tmp_path / name)]) == 0
    parsed = parse_benchmark(config, page)
    assert trial_configs(parsed) or target_configs(parsed)


def names_a_place(words: list[str]) -> bool:
    """Return whether a command has a placeholder in capitals or an ellipsis."""
    return any(word.isupper() or "…" in word or "..." in word for word in words)


@cache
def shown(*, complete: bool) -> list[list[str]]:
    found = [words for page in PAGES for words in commands(page)]
    found = [words for words in found if not set(REFUSED) <= set(words)]
    distinct = [list(words) for words in dict.fromkeys(map(tuple, found))]
    return [words for words in distinct if (not names_a_place(words)) == complete]


def test_every_documented_command_exists() -> None:
    for name, *rest in [*shown(complete=True), *shown(complete=False)]:
        assert name in COMMANDS
        if not rest:
            continue
        parser = load_parser(name)
        left_out = ("...", "…") if name == "profile" else ()
        plain = [word.strip("[]").replace("…", "NAME") for word in rest if word not in left_out]
        if "--help" not in plain:
            parser.parse(plain)


@pytest.mark.parametrize(
    "words", [each for each in shown(complete=True) if each[:2] == ["profile", "--workload"]]
)
def test_every_benchmark_of_a_tool_is_accepted(words: list[str]) -> None:
    parser = load_parser("profile")
    assert trial_configs(read_workload_draft(parser.parse(words[1:])).parse())


@pytest.mark.parametrize(
    "words",
    [each for each in shown(complete=True) if each[0] == "profile" and {"-u", "--url"} & set(each)],
    ids=" ".join,
)
def test_every_load_of_the_pages_is_accepted(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n'
    (tmp_path / "trace.jsonl").write_text(row)
    (tmp_path / "gate.jsonl").write_text('{"prompt": "?", "grader": "exact", "expected": "x"}\n')
    talk = '{"turns": ["a", {"role": "tool", "tool_call_id": "b"}]}\n'
    (tmp_path / "weather.jsonl").write_text(talk)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.json").write_bytes(weka(call(0, [1])))
    assert main([*words, "--dry-run"]) == 0


def test_command_shown_as_refused_is_refused() -> None:
    (words,) = (words for page in PAGES for words in commands(page) if set(REFUSED) <= set(words))
    assert main([*words, "--dry-run"]) == 2


def test_every_stack_named_on_a_page_exists() -> None:
    for page in PAGES:
        is_copy = "A copy of `stacks/Pulumi." in page.read_text()
        for command, *words in commands(page):
            if command not in ("run", "preview") or not words or names_a_place(words):
                continue
            name = words[0]
            is_there = (ROOT / "stacks" / f"Pulumi.{name}.yaml").exists()
            is_shown = any(f"name: {name}" in text for text in yaml_blocks(page))
            assert is_there or is_copy or is_shown, f"{page}: {name}"
