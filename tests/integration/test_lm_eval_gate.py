"""A quality gate of lm-evaluation-harness, with a fake program that leaves recorded files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.inference.lm_eval_process import check_lm_eval, measure_lm_eval
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError, DatasetError

RECORDED = Path(__file__).parents[1] / "unit" / "workloads" / "recorded" / "lm-eval"
LEAVES = f"""#!/bin/sh
set -e
test "$*" = "run --config lm_eval_settings.json"
test "$(cat data/x.yaml)" = "task: sums"
test "$OPENAI_API_KEY" = secret
test -z "$(grep secret lm_eval_settings.json)"
mkdir -p out/m
cp {RECORDED}/lm-eval-0.4.13-sums-results.json out/m/results_2026-11-26T13-45-06.320306.json
cp {RECORDED}/lm-eval-0.4.13-sums-samples.jsonl out/m/samples_sums_2026-11-26T13-45-06.320306.jsonl
"""


def config(**quality: Any) -> BenchmarkConfig:
    endpoint = {"url": "http://127.0.0.1:9", "model": "m", "api_key_env": "KEY_OF_TEST"}
    return parse_config(
        {
            "endpoint": endpoint | quality.pop("endpoint", {}),
            "load": {"concurrency": 3, "requests": 9},
            "quality": {
                "lm_eval": {"tasks": ["sums"], "files": {"data/x.yaml": "task: sums"}},
                "min_score": 0.4,
                **quality,
            },
        },
        "",
    )


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that writes the program, which comes first on PATH."""
    path = tmp_path / "lm_eval"
    path.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("KEY_OF_TEST", "secret")
    return path.write_text


async def test_score_is_the_share_of_right_answers(program: Callable[[str], Any]) -> None:
    program(LEAVES)
    result, answers = await measure_lm_eval(config())
    assert (result.right, result.issued, result.questions) == (6, 8, 8)
    assert (result.failed, result.is_met) == (1, True)
    assert result.graders["sums"].right == 6
    assert result.file == "lm_eval sums"
    assert answers[0].text == "The sum is 21."


async def test_answers_of_lm_eval_end_naturally(program: Callable[[str], Any]) -> None:
    forced = 'test -z "$(grep ignore_eos lm_eval_settings.json)"'
    program(f"{LEAVES}{forced}\ngrep -q top_k lm_eval_settings.json\n")
    inputs = {"ignore_eos": True, "top_k": 1}
    result, _ = await measure_lm_eval(config(endpoint={"extra_inputs": inputs}))
    assert result.issued == 8


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho one\necho 'ValueError: no such task' >&2\nexit 3\n",
         "lm_eval ended with code 3: ValueError: no such task"),
        ("#!/bin/sh\n", "lm_eval left 0 files of results"),
        (f"{LEAVES}sed -i 's/\"exact_match\": 1.0/\"exact_match\": 0.5/' out/m/samples*\n",
         "a gate needs a metric that is 0 or 1 for each question"),
        (f"{LEAVES}rm out/m/samples*\n", "sums is a group of tasks"),
    ],
)  # fmt: skip
async def test_gate_without_a_score_is_an_error(
    program: Callable[[str], Any], script: str, message: str
) -> None:
    program(script)
    with pytest.raises(DatasetError, match=r"^quality\.lm_eval: ") as error:
        await measure_lm_eval(config())
    assert message in str(error.value)


async def test_program_is_ended_at_the_timeout(
    program: Callable[[str], Any], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    program(f"#!/bin/sh\nmkfifo {fifo}; cat {fifo}\n")
    with pytest.raises(DatasetError, match=r"no result within quality.timeout, 0.5 s"):
        await measure_lm_eval(config(timeout="500ms"))


def test_missing_program_is_named_before_the_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DatasetError, match=r"^quality\.lm_eval needs lm_eval"):
        check_lm_eval(config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "gate.jsonl"}, "quality: file and lm_eval.tasks both set the questions"),
        ({"repeats": 2}, "quality: repeats is for the questions of file; leave it out with lm_ev"),
        ({"logprobs": True}, "quality: logprobs is for the questions of file"),
        ({"endpoint": {"type": "messages"}}, "quality.lm_eval.tasks needs endpoint.type chat or c"),
        ({"endpoint": {"headers": {"A": "b"}}}, "quality.lm_eval.tasks cannot use endpoint.heade"),
    ],
)
def test_settings_unsupported_by_lm_eval_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**changes)
    assert message in str(error.value)
