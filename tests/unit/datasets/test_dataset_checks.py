"""A dataset file is checked before anything starts, within limits."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.datasets import checks, files
from aiperf_svc.adapters.datasets.checks import CheckedFile, check_dataset
from aiperf_svc.cli import checks as cli_checks
from aiperf_svc.cli.checks import CheckedFiles, shown_reading
from aiperf_svc.cli.main import main
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets import media, trace_index
from aiperf_svc.domain.errors import DatasetError
from tests.support.traces import AZURE, BURST_GPT

Config = Callable[..., BenchmarkConfig]

ROW = '{"timestamp": 5, "input_length": 9, "output_length": 1}\n'
TALK = '{"timestamp": 5, "input_length": 9, "session_id": "a"}\n'
EXPECTED = 'expected an object such as {"timestamp": 0, "input_length": 655, "output_length": 52}'
MESSAGES = '{"messages": [{"role": "user", "content": "x"}]}\n'

REPLAY = {"load": {"fixed_schedule": True}}
COMPLETIONS = {"endpoint": {"type": "completions"}}
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
DAY = "2023-11-16 18:15:4"

BAD: list[tuple[str, str, str, dict[str, Any]]] = [
    (
        "mooncake_trace",
        ROW + ROW.replace("5", "4"),
        "2: time 4 is before 5 of an earlier row; sort the file by time",
        {},
    ),
    (
        "mooncake_trace",
        ROW.replace("5", "-5"),
        "1: time -5 is negative or no number; expected times of at least 0",
        {},
    ),
    ("mooncake_trace", ROW + ROW[:30], f"2: Input data was truncated; {EXPECTED}", {}),
    (
        "mooncake_trace",
        ROW + '{"input_length": 9}',
        "2: a row without `timestamp`, which load.fixed_schedule needs; give it one, or use "
        "load.request_rate or load.concurrency",
        REPLAY,
    ),
    (
        "mooncake_trace",
        ROW + TALK + TALK,
        "2: a conversation of 2 turns needs endpoint.type chat, responses or messages, not "
        "completions",
        COMPLETIONS,
    ),
    (
        "mooncake_trace",
        ROW + MESSAGES,
        "2: messages need endpoint.type: chat; the completions API takes texts",
        COMPLETIONS,
    ),
    ("mooncake_trace", "", " no entries; a dataset needs at least one prompt", {}),
    (
        "mooncake_trace",
        ROW,
        " no row that can be sent is between load.fixed_schedule_start_offset and "
        "load.fixed_schedule_end_offset",
        {"load": {"fixed_schedule": True, "fixed_schedule_start_offset": "1s"}},
    ),
    (
        "burst_gpt_trace",
        "Time,In,Out\n5,1,1\n",
        f"1: no column {' and no column '.join(map(repr, COLUMNS))} in 'Time, In, Out'; "
        f"expected a first line with {', '.join(COLUMNS)}",
        {},
    ),
    (
        "burst_gpt_trace",
        BURST_GPT + "5,m,1,1,2,l\n6,m,1",
        "3: 3 columns, the first line has 6; "
        "expected a row such as 5,ChatGPT,472,18,490,Conversation log",
        {},
    ),
    (
        "azure_trace",
        AZURE + f"{DAY}6.1,1,1\n{DAY}5.1,1,1\n",
        "3: time 1700158545.1 is before 1700158546.1 of an earlier row; sort the file by time",
        {},
    ),
    ("single_turn", '{"text": "a"}\n{"x": 1}', "2: needs exactly one prompt, found none", {}),
    ("multi_turn", '{"turns": ["a"]}\n{"turns": []}\n', "2: `turns` is empty", {}),
    ("sharegpt", '[{"id": "x"}]', "1: Object missing required field `conversations`", {}),
]
"""Kind, content, the message after the file's name, and other parts of the config."""


@pytest.mark.parametrize(("kind", "content", "line", "parts"), BAD, ids=[b[2][:40] for b in BAD])
def test_a_bad_row_is_found_before_the_start(
    in_file: Config, tmp_path: Path, kind: str, content: str, line: str, parts: dict[str, Any]
) -> None:
    with pytest.raises(DatasetError) as raised:
        check_dataset(in_file(kind, content, **parts))
    assert str(raised.value).startswith(f"{tmp_path / 'data'}:{line}")
    assert "\n" not in str(raised.value)


def test_user_sees_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(ROW + ROW[:30])
    flags = ["--input-file", str(file), "--custom-dataset-type", "mooncake_trace"]
    code = main(["profile", "-u", "localhost:1", "-m", "m", "--fixed-schedule", *flags])
    assert code == 2
    assert capsys.readouterr().err == f"error: {file}:2: Input data was truncated; {EXPECTED}\n"


def test_too_large_pictures_are_refused_before_the_start(config: Config) -> None:
    def pictures(number: int) -> CheckedFile:
        return check_dataset(config(dataset={"images": {"number": number}, "entries": 1_000}))

    pictures(2)
    with pytest.raises(DatasetError, match=r"^dataset\.entries: 1,000 requests have 2\.9 GiB"):
        pictures(3)


def test_unknown_row_members_are_named_and_ignored(in_file: Config) -> None:
    rows = ROW.replace("}", ', "note": [1, {"x": 2}]}') + ROW.replace("}", ', "hash": 1}')
    benchmark = in_file("mooncake_trace", rows)
    message = "`note`, `hash`: not read, no row of a mooncake_trace has such a member"
    assert check_dataset(benchmark) == CheckedFile(f"{benchmark.dataset.file}: {message}")
    known = ROW.replace("}", ', "chat_id": 1, "type": "text"}')
    assert check_dataset(in_file("bailian_trace", known)) == CheckedFile()


def test_file_is_read_for_a_bounded_time(in_file: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECK_S", 0.0)
    for kind, line in (("mooncake_trace", ROW), ("single_turn", '{"text": "a"}\n')):
        benchmark = in_file(kind, line + "not read")
        assert check_dataset(benchmark) == CheckedFile(
            f"{benchmark.dataset.file} is checked up to line 1; the rest is checked after the "
            "start, when the dataset is built"
        )


def test_held_file_is_read_to_a_bounded_size(
    in_file: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHECK_BYTES", 20)
    found = check_dataset(in_file("single_turn", '{"text": "a"}\n{"text": "b"}\nnot read'))
    assert "up to line 2" in found.notice


def test_endless_line_is_not_held(in_file: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_LENGTH", 1024)
    benchmark = in_file("mooncake_trace", gzip.compress(ROW.encode() + b" " * 100_000))
    with pytest.raises(DatasetError) as raised:
        check_dataset(benchmark)
    wrong = "2: a line of over 1 KiB; expected shorter lines"
    assert str(raised.value) == f"{benchmark.dataset.file}:{wrong}"


def test_rows_after_the_schedule_are_not_read(in_file: Config) -> None:
    rows = [json.dumps({"timestamp": 1000 * n, "input_length": 5}) for n in range(10)]
    load = {"fixed_schedule": True, "fixed_schedule_end_offset": "6s", "replay_speedup": 2}
    benchmark = in_file("mooncake_trace", "\n".join([*rows, "not read"]), load=load)
    assert check_dataset(benchmark) == CheckedFile(replay_ns=6 * 10**9)


def test_trials_at_other_speeds_read_the_file_once(
    in_file: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, loads = (
        ROW + ROW.replace("5", "4005"),
        [{"fixed_schedule": True, "replay_speedup": speed} for speed in (1, 2, 4)],
    )
    trials = [in_file("mooncake_trace", rows, load=load) for load in loads]
    read = []
    monkeypatch.setattr(
        checks,
        "check_dataset",
        lambda each, watch: (read.append(each), check_dataset(each))[1],  # type: ignore[func-returns-value]
    )
    found = CheckedFiles(trials)
    assert len(read) == 1
    assert [found.replay_ns(each) for each in trials] == [4 * 10**9, 2 * 10**9, 10**9]


def test_trace_with_too_many_rows_is_refused(
    in_file: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHECK_S", 0.0)
    monkeypatch.setattr(checks, "MAX_ROWS", 4)
    with pytest.raises(DatasetError, match=r"about 5 rows, and at most .* are held; say how many"):
        check_dataset(in_file("mooncake_trace", ROW * 5))
    assert check_dataset(in_file("mooncake_trace", ROW * 5, dataset={"entries": 2})).notice


def test_rows_in_memory_are_bounded(in_file: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_index, "MAX_ROWS", 4)
    with pytest.raises(DatasetError, match="data:5: over 4 rows, and at most 4 are held"):
        check_dataset(in_file("mooncake_trace", ROW * 5))
    check_dataset(in_file("mooncake_trace", ROW * 5, dataset={"entries": 4}))


@pytest.mark.parametrize("kind", ["single_turn", "sharegpt", "random_pool", "mooncake_trace"])
def test_special_file_is_not_read(config: Config, tmp_path: Path, kind: str) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    for file, what in ((Path("/dev/zero"), "a device"), (pipe, "a pipe")):
        with pytest.raises(DatasetError) as raised:
            check_dataset(config(dataset={"kind": kind, "file": str(file)}))
        expected = f"{file} cannot be read: {what}; expected a regular file"
        assert str(raised.value) == f"dataset.file: {expected}"


def test_special_file_as_picture_is_named(in_file: Config) -> None:
    benchmark = in_file("single_turn", '{"text": "a"}\n{"text": "b", "image": "/dev/zero"}\n')
    with pytest.raises(DatasetError) as raised:
        check_dataset(benchmark)
    wrong = "2: /dev/zero: a device; expected a regular file"
    assert str(raised.value) == f"{benchmark.dataset.file}:{wrong}"


def test_pictures_of_all_lines_have_a_size_limit(
    in_file: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = media.png_of(np.zeros((4, 4, 3), np.uint8))
    (tmp_path / "a.png").write_bytes(picture)
    monkeypatch.setattr(media, "MAX_BYTES", 3 * len(picture))
    benchmark = in_file("single_turn", '{"text": "a", "image": "a.png"}\n' * 3)
    check_dataset(benchmark)
    monkeypatch.setattr(media, "MAX_BYTES", 1024)
    (tmp_path / "a.png").write_bytes(picture + bytes(512))
    with pytest.raises(DatasetError, match=r"data:2: a\.png: the images and sounds of the "):
        check_dataset(benchmark)


@pytest.mark.parametrize(("kind", "place"), [("single_turn", ":4"), ("sharegpt", "")])
def test_compressed_file_is_refused_by_its_unpacked_size(
    in_file: Config, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    monkeypatch.setattr(files, "MAX_HELD_BYTES", 1024)
    line = b'{"text": "' + b"a" * 300 + b'"}\n'
    benchmark = in_file(kind, gzip.compress(line * 5 if kind == "single_turn" else b" " * 2000))
    with pytest.raises(DatasetError) as raised:
        check_dataset(benchmark)
    assert str(raised.value) == (
        f"{benchmark.dataset.file}{place}: over 1 KiB up to here, the limit for prompts in memory; "
        "set the number of prompts with dataset.entries (--num-prompts), or give a smaller file"
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_progress_of_a_file_grows_to_its_end(
    in_file: Config, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(files, "_WATCHED_BYTES", 0)
    rows = [ROW.replace("5", str(number)) for number in range(20_000)]
    shares: list[float] = []
    check_dataset(in_file("mooncake_trace", pack("".join(rows).encode())), shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5
    assert shares[-1] == 1.0


def test_terminal_shows_and_clears_the_reading_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_checks, "SHOWN_EVERY_S", 0.0)
    with shown_reading("a.gz") as watch:
        watch(0.1)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with shown_reading("a.gz") as watch:
        watch(0.25)
        watch(1.0)
    shown = capsys.readouterr().err.split("\r")
    assert shown == ["", "reading a.gz: 25%\x1b[K", "reading a.gz: 100%\x1b[K", "\x1b[K"]


@pytest.mark.parametrize("kind", ["multi_turn", "sharegpt", "mooncake_trace"])
def test_deeply_nested_values_are_a_line_error(in_file: Config, kind: str) -> None:
    deep = '{"text": ' + "[" * 100_000
    benchmark = in_file(kind, f"[{deep}" if kind == "sharegpt" else deep)
    wrong = f"^{benchmark.dataset.file}.*: values nested too deeply; expected "
    with pytest.raises(DatasetError, match=wrong):
        check_dataset(benchmark)
