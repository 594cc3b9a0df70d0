"""The kind `lm-eval`. The recorded files come from runs of lm_eval 0.4.13 against a server with
known answers: 6 of 8 sums are right and one has no text; one of two capitals is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.quality import SETTINGS_FILE
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.quality import lm_eval
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.lm_eval import WORKLOAD
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from tests.support.small_configs import small_benchmark
from tests.support.tool_runs import make_ranks, tool_config

RECORDED = Path(__file__).parent / "recorded" / "lm-eval"


def config_of(**spec: Any) -> WorkloadConfig[Any]:
    keys = {"url": "http://s:8000/v1", "model": "m", "tasks": ["sums"], **spec}
    return tool_config("lm-eval", **keys)


def recorded(task: str, what: str) -> bytes:
    (path,) = RECORDED.glob(f"*-{task}-{what}.json*")
    return path.read_bytes()


def left_by(task: str = "sums", **changes: Any) -> dict[str, bytes]:
    """Return the files of a run with changed members of its results."""
    results = json.loads(recorded(task, "results")) | changes
    return {
        "out/m/results_2026-11-26T13-45-06.320306.json": json.dumps(results).encode(),
        f"out/m/samples_{task}_2026-11-26T13-45-06.320306.jsonl": recorded(task, "samples"),
    }


def reading_of(files: dict[str, bytes], **spec: Any) -> Reading:
    config = config_of(**spec)
    step = WORKLOAD.steps(config, make_ranks(1))[0]
    return WORKLOAD.read(config, step, [Output(rank=0, exit_code=0, files=files)])


def test_recorded_run_has_its_score_and_questions() -> None:
    reading = reading_of(left_by())
    assert reading.values == {"score": 0.75, "questions": 8.0, "answers_without_text": 1.0}
    assert reading.tool == "lm_eval 0.4.13"
    assert reading.facts["sums"] == "exact_match,last-number 0.75 ± 0.1637 of 8 questions"


def test_several_tasks_have_their_scores_and_the_mean() -> None:
    sums, capitals = left_by(), json.loads(recorded("capitals", "results"))
    both = {
        name: json.loads(recorded("sums", "results"))[name] | capitals[name]
        for name in ("results", "n-samples", "versions")
    }
    tasks = ["sums", "capitals"]
    files = sums | {list(left_by("capitals"))[1]: recorded("capitals", "samples")}
    reading = reading_of(files | dict([next(iter(left_by(**both).items()))]), tasks=tasks)
    assert reading.values == {
        "score": 0.625,
        "questions": 10.0,
        "answers_without_text": 1.0,
        "score_sums": 0.75,
        "score_capitals": 0.5,
    }
    assert {each.tag for each in WORKLOAD.metrics_of(config_of(tasks=tasks))} == set(reading.values)


@pytest.mark.parametrize(
    ("files", "spec", "message"),
    [
        ({}, {}, "lm_eval left 0 files of results"),
        ({"out/m/results_1.json": b"{"}, {}, "results of lm_eval: "),
        (left_by(), {"tasks": ["gsm8k"]}, "no result of the task 'gsm8k'; it has sums"),
        (left_by(), {"metric": "acc"}, "no metric 'acc'; it has exact_match,last-number"),
        (
            left_by(results={"sums": {"word_perplexity,none": 12.5, "alias": "sums"}}),
            {},
            "word_perplexity,none is 12.5, not a score from 0 to 1",
        ),
        (
            left_by(higher_is_better={"sums": {"exact_match": False}}),
            {},
            "smaller values of exact_match,last-number are better",
        ),
    ],
)
def test_results_without_a_score_are_unreadable(
    files: dict[str, bytes], spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnreadableOutput) as error:
        reading_of(files, **spec)
    assert message in str(error.value)


def test_settings_name_the_server_and_the_tasks() -> None:
    config = config_of(
        files={"a/sums.yaml": "task: sums"}, few_shot=0, limit=9, concurrency=3,
        extra_inputs={"top_k": 1},
    )  # fmt: skip
    files = WORKLOAD.files(config)
    assert files["a/sums.yaml"] == b"task: sums"
    settings = json.loads(files[SETTINGS_FILE])
    arguments = settings.pop("model_args")
    assert arguments["base_url"] == "http://s:8000/v1/chat/completions"
    assert (arguments["model"], arguments["num_concurrent"]) == ("m", 3)
    assert arguments["tokenizer_backend"] is None
    assert settings == {
        "model": "local-chat-completions",
        "tasks": ["sums"],
        "apply_chat_template": True,
        "log_samples": True,
        "output_path": "out",
        "include_path": ".",
        "num_fewshot": 0,
        "limit": 9,
        "gen_kwargs": {"top_k": 1},
    }


def test_likelihoods_need_completions_and_a_tokenizer() -> None:
    files = WORKLOAD.files(config_of(api="completions", tokenizer="tok", max_length=4096))
    settings = json.loads(files[SETTINGS_FILE])
    assert settings["model"] == "local-completions"
    assert not settings["apply_chat_template"]
    arguments = settings["model_args"]
    assert (arguments["tokenizer"], arguments["max_length"]) == ("tok", 4096)
    assert arguments["tokenizer_backend"] == "huggingface"


def test_limit_and_empty_answers_are_checks() -> None:
    config = config_of(limit=8)
    found = WORKLOAD.checks(config, [reading_of(left_by())])
    assert [(each.check, each.severity) for each in found] == [
        ("task-limit", Severity.INFO),
        ("answers-without-text", Severity.DEGRADED),
    ]
    assert WORKLOAD.checks(config_of(), [reading_of(left_by("capitals"), tasks=["capitals"])]) == ()


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"tasks": ["sums", "sums"]}, "tasks has 'sums' twice"),
        ({"tasks": ["a-b", "a.B"]}, "tasks has 'a.B' twice, compared without case"),
        ({"tasks": ["sums"], "files": {SETTINGS_FILE: "x"}},
         "files has lm_eval_settings.json, which is written for the program"),
        ({"tasks": ["sums"], "files": {"a/../../x": "x"}}, "expected a relative path"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["workload", "quality.lm_eval"])
def test_workload_and_gate_refuse_the_same_tasks(
    key: str, tasks: dict[str, Any], message: str
) -> None:
    server = {"url": "http://s:8000/v1", "model": "m"}
    configs: dict[str, dict[str, Any]] = {
        "workload": {"workload": {"kind": "lm-eval", **server, **tasks}},
        "quality.lm_eval": small_benchmark(quality={"lm_eval": tasks}),
    }
    with pytest.raises(ConfigError) as error:
        parse_benchmark(configs[key], "")
    assert f"{key}" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("task", "texts", "grades"),
    [
        ("sums", "The sum is 21.", [True, True, False, True, True, True, False, True]),
        ("capitals", "1", [True, False]),
    ],
)
def test_samples_are_graded_answers(task: str, texts: str, grades: list[bool]) -> None:
    config = config_of(tasks=[task])
    (score,) = lm_eval.read_results(recorded(task, "results"), config.workload).scores
    answers = lm_eval.read_samples(recorded(task, "samples").splitlines(), score, first=5)
    assert [each.is_right for each in answers] == grades
    assert [each.question for each in answers] == list(range(5, 5 + len(grades)))
    assert answers[0].text == texts
    assert [each.question for each in answers if each.error] == ([11] if task == "sums" else [])


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"url": "http://me:pw@s:8000"}, "workload.url: holds a name or password"),
        ({"url": "http://[::1"}, "workload.url: 'http://[::1': expected an address such as"),
        (
            {"url": "http://s/v1?a=b"},
            "workload.url: 'http://s/v1': expected no ? or # after the path",
        ),
        ({"extra_inputs": {"api_key": "x"}}, "workload.extra_inputs.api_key: would be kept in"),
    ],
)
def test_secret_in_plain_text_is_refused(spec: dict[str, Any], problem: str) -> None:
    (found,) = WORKLOAD.problems(config_of(**spec))
    assert found.startswith(problem)
    assert WORKLOAD.problems(config_of(extra_inputs={"top_k": 1})) == []


def test_ranks_reach_the_server_and_the_hub() -> None:
    assert [each.url for each in WORKLOAD.outside(config_of())] == [
        "http://s:8000/v1",
        "https://huggingface.co",
    ]
    offline = config_of(env={"HF_HUB_OFFLINE": "1"})
    assert [each.url for each in WORKLOAD.outside(offline)] == ["http://s:8000/v1"]
