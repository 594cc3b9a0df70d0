"""Configs are read from files and written back."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.config.load_config import load_config, parse_config, save_config, stack_path
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.workloads.registry import load_benchmark
from tests.support.small_configs import small_benchmark

REPOSITORY = Path(__file__).parents[3]
SMALL = small_benchmark(load={"concurrency": 4, "duration": "1m30s"})


def written(folder: Path, content: object, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.exit_code is ExitCode.BAD_CONFIG
    return str(caught.value)


def test_yaml_json_and_stack_files_yield_one_config(tmp_path: Path) -> None:
    plain = load_config(written(tmp_path, SMALL))
    assert plain.load.duration == 90 * 10**9
    assert load_config(written(tmp_path, json.dumps(SMALL), "c.json")) == plain
    stack = {"config": {"aiperf:benchmark": SMALL, "aiperf:targetApiKey": {"secure": "v1:abc"}}}
    assert load_config(written(tmp_path, stack, "Pulumi.x.yaml")) == plain


def test_saved_config_is_read_back_unchanged(tmp_path: Path) -> None:
    data = {
        **SMALL,
        "load": {"request_rate": 12.5, "requests": 10, "warmup": {"duration": "250ms"}},
        "dataset": {"output_tokens": {"mean": 7, "stddev": 0.5}, "max_download": "3Gi"},
        "slo": {
            "objectives": [{"metric": "request_latency", "stat": "p99", "max": "1s"}],
            "goodput": {"time_to_first_token": 30},
        },
        "deployment": {"pods": {"worker": {"cpu": "250m"}}, "ttl": "3h"},
    }
    config = parse_config(data, "")
    path = tmp_path / "saved.yaml"
    save_config(config, path)
    assert load_config(path) == config
    assert "250ms" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "stacks").glob("Pulumi.*.yaml")), ids=str)
def test_every_stack_file_is_a_valid_config(path: Path) -> None:
    load_benchmark(path)


def test_stack_is_found_by_name_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks").mkdir()
    path = written(tmp_path / "stacks", {"config": {"aiperf:benchmark": SMALL}}, "Pulumi.one.yaml")
    monkeypatch.chdir(tmp_path)
    assert stack_path("one") == Path("stacks/Pulumi.one.yaml")
    assert stack_path(str(path)) == path
    assert load_config(path) == parse_config(SMALL, "")
    with pytest.raises(ConfigError, match=r"stack 'onne': .*did you mean one\?"):
        stack_path("onne")
    with pytest.raises(ConfigError, match=r"found: one$"):
        stack_path("zzz")


def test_a_duplicate_key_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "load:\n  concurrency: 1\n  requests: 3\n  concurrency: 2\n")
    assert refused(path) == (
        f"{path}:4: 'concurrency' is given twice, first in line 2; remove one of them"
    )


def test_merge_key_may_accompany_its_own_key(tmp_path: Path) -> None:
    text = (
        "endpoint: {url: 'http://h', model: m}\n"
        "load:\n  <<: {concurrency: 1, requests: 2}\n  concurrency: 3\n"
    )
    assert load_config(written(tmp_path, text)).load.concurrency == 3


def test_a_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path, "endpoint:\n  url: [1, 2\nload: 3\n")
    assert refused(path).startswith(f"{path}:3: not valid YAML: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "expected a benchmark's keys (endpoint, load, …), not nothing"),
        ("[1, 2]", "not list"),
        (
            "config: {aiperf:benchmrk: {}}",
            "config has no aiperf:benchmark; rename 'aiperf:benchmrk' to it",
        ),
        ("a: !!python/object:os.system {}", "not valid YAML: could not determine a constructor"),
        ("a: \x00", "not YAML"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    path = written(tmp_path, content)
    message = refused(path)
    assert message.startswith(str(path))
    assert expected in message


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "nix.yaml") == f"{tmp_path / 'nix.yaml'}: no such file"
    assert refused(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: caf\xe9")
    assert refused(latin) == f"{latin}: not UTF-8 text (byte 9)"


@pytest.mark.parametrize(
    ("load", "more", "message"),
    [
        ({"concurrency": 4}, {"workers": {"max": 1}}, "needs concurrency 8"),
        ({"concurrency": 8, "request_rate": 5}, {"workers": {"max": 1}}, "neither a schedule"),
        ({"concurrency": 8, "requests": 20}, {"workers": {"max": 1}}, "not whole queries"),
        ({"concurrency": 8}, {}, "set workers.max 1"),
        (
            {"concurrency": 8},
            {"workers": {"max": 1}, "dataset": {"kind": "multi_turn", "file": "f"}},
            "has conversations",
        ),
        (
            {"concurrency": 8, "stages": [{"rate": 5, "duration": "9s"}]},
            {"workers": {"max": 1}},
            "neither a schedule nor",
        ),
    ],
)
def test_queries_of_samples_need_one_worker(
    tmp_path: Path, load: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    data = {**SMALL, **more, "load": {"duration": "9s", "samples_per_query": 8} | load}
    assert message in refused(written(tmp_path, data))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "m0: &m0 {x: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 40)
)


@pytest.mark.parametrize(
    ("content", "line", "expected"),
    [
        (BOMB, 5, "stand for over 100,000 values; repeat fewer"),
        (MERGES, 15, "stand for over 100,000 values; repeat fewer"),
        ("a: &a [1, *a]", 1, "the alias *a contains itself; write the values"),
        ("[" * 100_000, 1, "nested more than 100 levels deep; use fewer levels"),
        ("a: 1\nb: " + "9" * 100_000, 2, "not a value: a number of 100,000 characters"),
        ("a: " + ":".join(["1"] * 100_000), 1, "not a value: a number of 199,999 characters"),
    ],
)
def test_oversized_yaml_is_refused_with_its_line(
    tmp_path: Path, content: str, line: int, expected: str
) -> None:
    path = written(tmp_path, content)
    message = refused(path)
    assert message.startswith(f"{path}:{line}: ")
    assert message.endswith(expected)


def test_aliases_may_repeat_small_values(tmp_path: Path) -> None:
    text = "endpoint: &e {url: 'http://h', model: m}\nload: {concurrency: 1, requests: 2}\n"
    path = written(tmp_path, text + "".join(f"x{n}: *e\n" for n in range(1000)))
    assert len(read_yaml(path)) == 1002


def test_special_file_is_not_read(tmp_path: Path) -> None:
    assert refused(Path("/dev/zero")) == (
        "/dev/zero: cannot be read: a device; expected a regular file"
    )
    os.mkfifo(pipe := tmp_path / "pipe")
    assert refused(pipe).endswith("cannot be read: a pipe; expected a regular file")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (path := tmp_path / "sparse.yaml").open("wb") as file:
        file.truncate(2**40)
    assert refused(path) == f"{path}: cannot be read: over 16 MiB, the most that is read"
