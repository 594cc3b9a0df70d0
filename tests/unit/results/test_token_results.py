"""Response lengths and finish reasons of a whole run."""

from typing import Any

import numpy as np
import pytest

from aiperf_svc.core.verdict.check_result import Reason
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.records import UNCOUNTED_TOKENS, Rows
from tests.support import fake_run
from tests.support.fake_run import results


def test_output_lengths_are_compared_with_requested_lengths() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(tokens=n, requested_tokens=100) for n in (100, 95, 94, 106, 2)),
            *(fake_run.request(tokens=n, requested_tokens=10) for n in (9, 8)),
            fake_run.request(tokens=1950, requested_tokens=2000),
            fake_run.request(tokens=1949, requested_tokens=2000),
            fake_run.request(tokens=5, requested_tokens=-1),
            fake_run.request(requested_tokens=100, outcome=Outcome.ERRORED, error=ErrorKind.SERVER),
        ]
    )
    found = results(rows)
    assert found.scalars["osl_mismatch_count"] == 6
    assert found.metrics["requested_osl"].distribution.count == 9
    diff = found.metrics["osl_mismatch_diff_pct"]
    assert (diff.stat("min"), diff.stat("max")) == (-98.0, 6.0)
    (check,) = [c for c in found.verdict.checks if c.check == "output_length"]
    assert check.measured == pytest.approx(5 / 9), "one token of ten is a tokenizer's rounding"
    assert check.severity == "degraded"


def test_length_that_the_server_states_is_not_off() -> None:
    rows = np.concatenate([fake_run.request(tokens=n, requested_tokens=100) for n in (113, 60)])
    rows["usage_completion_tokens"] = 100, 60
    found = results(rows)
    assert found.scalars["osl_mismatch_count"] == 2
    (check,) = [c for c in found.verdict.checks if c.check == "output_length"]
    assert check.measured == pytest.approx(1 / 2)


def test_maximum_length_is_not_checked() -> None:
    rows = fake_run.request(tokens=2, requested_tokens=100)
    config = fake_run.config(concurrency=1, requests=1, endpoint={"force_output_length": False})
    found = results(rows, config=config)
    assert found.scalars["osl_mismatch_count"] == 1
    assert "output_length" not in {c.check for c in found.verdict.checks}


@pytest.mark.parametrize(
    ("columns", "severity"),
    [
        ({"output_tokens": -1}, "degraded"),
        ({"input_tokens": -1}, "degraded"),
        ({"output_tokens": -1, "finish_reason": FinishReason.NO_CONTENT}, "valid"),
        ({"output_tokens": -1, "outcome": Outcome.CANCELLED}, "valid"),
    ],
)
def test_missing_token_counts_are_listed_with_available_ones(
    columns: dict[str, int], severity: str
) -> None:
    rows = np.concatenate([fake_run.request(tokens=8, input_tokens=7) for _ in range(20)])
    for name, value in columns.items():
        rows[name][::2] = value
    checks = {check.check: check for check in results(rows).verdict.checks}
    assert checks["token_counts"].severity == severity


def test_run_without_token_counts_has_no_sum() -> None:
    rows = np.concatenate([fake_run.request(output_tokens=-1) for _ in range(20)])
    found = results(rows)
    assert not {"total_osl", "total_isl"} & found.scalars.keys()
    (note,) = found.verdict.notes
    assert note.startswith("not measured: Input Sequence Length, Inter Token Latency, Output Seq")
    assert "(tokenizer.name, --tokenizer)" in note
    assert found.verdict.verdict == "valid"


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        ({}, {"tokenizer": {"name": "t"}}),
        ({"finish_reason": FinishReason.NO_CONTENT}, {}),
        ({}, {"endpoint": {"type": "embeddings", "streaming": False}}),
    ],
)
def test_missing_count_without_output_is_not_named(
    columns: dict[str, int], settings: dict[str, Any]
) -> None:
    rows = np.concatenate([fake_run.request(output_tokens=-1, **columns) for _ in range(20)])
    config = fake_run.config(concurrency=1, requests=20, **settings)
    assert results(rows, config=config).verdict.notes == ()


def test_finish_reasons_are_counted_by_name() -> None:
    rows = np.concatenate(
        [
            *(fake_run.request(finish_reason=FinishReason.STOP) for _ in range(3)),
            fake_run.request(finish_reason=FinishReason.NO_CONTENT),
            fake_run.request(
                finish_reason=FinishReason.ABORT, outcome=Outcome.ERRORED, error=ErrorKind.ABORTED
            ),
            fake_run.request(finish_reason=FinishReason.STOP, phase=Phase.WARMUP),
            fake_run.without_response(start_ms=0, end_ms=300),
        ]
    )
    assert results(rows).finish_reasons == {"stop": 3, "no_content": 1, "abort": 1}


def checks_of(**columns: Any) -> dict[str, str]:
    rows = np.concatenate([fake_run.request(tokens=10, **columns) for _ in range(20)])
    return {check.check: str(check.severity) for check in results(rows).verdict.checks}


@pytest.mark.parametrize(
    ("columns", "severity"),
    [
        ({"text_bytes": 10}, "valid"),
        ({"text_bytes": 0, "output_tokens": 0}, "valid"),
        ({"text_bytes": 40, "output_tokens": 0}, "invalid"),
        ({"text_bytes": 40, "output_tokens": 1_000}, "invalid"),
        ({"text_bytes": 1, "output_tokens": 12}, "valid"),
        ({"text_bytes": 40, "output_tokens": 1_000, "hidden_tokens": 990}, "valid"),
        ({"text_bytes": 40, "output_tokens": 1_000, "blank_tokens": 990}, "valid"),
        ({"text_bytes": 40, "output_tokens": 1_000, "flags": 0}, "degraded"),
    ],
)
def test_impossible_tokens_are_named(columns: dict[str, int], severity: str) -> None:
    assert checks_of(**columns)["token_bytes"] == severity


@pytest.mark.parametrize(
    ("columns", "severity"),
    [
        ({"output_tokens": 5}, "valid"),
        ({"output_tokens": 4}, "degraded"),
        ({"output_tokens": 100, "hidden_tokens": 96}, "degraded"),
        ({"output_tokens": 100, "hidden_tokens": 96, "first_output_wall_ns": 1}, "valid"),
        ({"output_tokens": 4, "chunks": 0}, "valid"),
        ({"output_tokens": 66}, "degraded"),
        ({"output_tokens": 65}, "valid"),
        ({"output_tokens": 66, "chunks": 33}, "valid"),
        ({"output_tokens": 66, "chunks": 0}, "valid"),
        ({"output_tokens": 66, "hidden_tokens": 50}, "valid"),
    ],
)
def test_tokens_contradicting_their_events_are_named(
    columns: dict[str, int], severity: str
) -> None:
    assert checks_of(text_bytes=99, **columns)["token_events"] == severity


def test_hidden_and_blank_tokens_are_reported() -> None:
    assert "hidden_tokens" not in checks_of()
    assert checks_of(hidden_tokens=3)["hidden_tokens"] == "info"
    assert checks_of(blank_tokens=3)["blank_deltas"] == "info"


def test_uncertain_first_token_is_named() -> None:
    assert "blank_deltas" not in checks_of()
    assert checks_of(ttft_ms=100, blank_lead_us=4_000)["blank_deltas"] == "valid"
    assert checks_of(ttft_ms=100, blank_lead_us=6_000)["blank_deltas"] == "degraded"


def test_sum_with_an_unknown_count_is_absent() -> None:
    rows = np.concatenate([fake_run.request(tokens=10) for _ in range(20)])
    assert results(rows).scalars["total_output_tokens"] == 200
    rows["reasoning_tokens"][3] = UNCOUNTED_TOKENS
    found = results(rows)
    assert "total_output_tokens" not in found.scalars
    assert found.scalars["total_osl"] == 200
    assert found.metrics["output_token_count"].distribution.count == 19


def by_tokenizer(rows: Rows, name: str | None = "gpt2", **endpoint: Any) -> dict[str, Reason]:
    """Return the checks of a run with prompts of 100 tokens. The named tokenizer counts them."""
    config = fake_run.config(
        concurrency=1,
        requests=1,
        tokenizer={"name": name},
        endpoint=endpoint,
        dataset={"input_tokens": {"mean": 100}},
    )
    return {check.check: check for check in results(rows, config=config).verdict.checks}


def counted(requests: int = 20, **columns: Any) -> Rows:
    rows = np.concatenate([fake_run.request(tokens=20) for _ in range(requests)])
    counts = {
        "input_tokens": 100,
        "usage_prompt_tokens": 104,
        "output_tokens": 20,
        "usage_completion_tokens": 21,
    }
    for name, values in (counts | columns).items():
        rows[name] = values
    return rows


def test_special_tokens_do_not_disagree() -> None:
    checks = by_tokenizer(counted())
    assert checks["output_tokens"].severity == checks["input_tokens"].severity == "valid"


def test_tokenizer_that_disagrees_with_the_server_is_named() -> None:
    check = by_tokenizer(counted(usage_completion_tokens=10))["output_tokens"]
    assert (check.severity, check.measured) == ("degraded", 0.5)
    assert "gpt2 and the server disagree on the output tokens of 20 of 20" in check.text
    assert "400 by the tokenizer, 200 by the server" in check.text
    assert "use_server_token_count" in check.remedy


def test_excess_and_missing_tokens_do_not_cancel() -> None:
    checks = by_tokenizer(counted(usage_completion_tokens=[10, 30] * 10))
    assert checks["output_tokens"].measured == pytest.approx((10 + 10) / (20 + 30))


TOOLS: dict[str, Any] = {"extra_inputs": {"tools": []}}


@pytest.mark.parametrize(
    ("columns", "endpoint"),
    [
        ({"usage_prompt_tokens": 356}, {}),
        ({"usage_prompt_tokens": 900}, TOOLS),
        ({"usage_prompt_tokens": 900, "turn": 1}, {}),
    ],
    ids=["template", "tools", "history"],
)
def test_server_counts_more_than_the_prompt(
    columns: dict[str, int], endpoint: dict[str, Any]
) -> None:
    assert by_tokenizer(counted(**columns), **endpoint)["input_tokens"].severity == "valid"


def test_input_tokens_far_beyond_template_are_named() -> None:
    check = by_tokenizer(counted(usage_prompt_tokens=900))["input_tokens"]
    assert (check.severity, check.measured) == ("degraded", pytest.approx(8 / 9))
    assert "counts 18,000 input tokens in 20 of 20 prompts that have 2,000" in check.text


@pytest.mark.parametrize(
    ("prompts", "stated"),
    [(5_000, 50), (np.arange(500, 520), 400)],
    ids=["by far", "at one length"],
)
def test_a_server_that_truncates_prompts_is_named(prompts: Any, stated: int) -> None:
    check = by_tokenizer(counted(input_tokens=prompts, usage_prompt_tokens=stated))["input_tokens"]
    assert check.severity == "invalid"
    assert check.text.startswith("the server truncated the prompts: ")
    assert f"and {stated} tokens in 20 of these" in check.text


def test_fewer_input_tokens_may_be_another_tokenizers() -> None:
    other = counted(usage_prompt_tokens=np.arange(60, 80))
    check = by_tokenizer(other)["input_tokens"]
    assert check.severity == "degraded"
    assert check.text.startswith("the server uses another tokenizer: it counts 1,390 input tokens")
    same = by_tokenizer(counted(usage_prompt_tokens=70))["input_tokens"]
    assert same.severity == "degraded"
    assert "or truncated the prompts at 70 tokens" in same.text


def test_prompts_sent_again_are_not_cut() -> None:
    # Two prompts of different lengths, for which another tokenizer counts a fifth less.
    again = counted(input_tokens=[500, 520] * 10, usage_prompt_tokens=[400, 416] * 10)
    check = by_tokenizer(again)["input_tokens"]
    assert check.severity == "degraded"
    assert check.text.startswith(
        "the server uses another tokenizer, or truncated the prompts at 416"
    )


def test_counts_of_the_server_are_compared_with_nothing() -> None:
    checks = by_tokenizer(counted(usage_completion_tokens=10), use_server_token_count=True)
    assert "output_tokens" not in checks


def test_uncounted_prompts_are_compared_with_the_requested_length() -> None:
    cut = counted(usage_prompt_tokens=40, input_tokens=40)
    check = by_tokenizer(cut, name=None)["input_tokens"]
    assert (check.severity, check.measured) == ("degraded", pytest.approx(0.6))
    assert check.text == (
        "the server counts 40 input tokens on average in prompts of about 100: it truncated them"
    )
    more = counted(usage_prompt_tokens=180, input_tokens=180)
    assert by_tokenizer(more, name=None)["input_tokens"].severity == "valid"
    uncounted = counted(usage_prompt_tokens=-1, input_tokens=-1)
    assert "input_tokens" not in by_tokenizer(uncounted, name=None)


def test_uncounted_prompts_that_grew_are_named() -> None:
    # 100 tokens were requested, and no template adds more than 256.
    grown = counted(usage_prompt_tokens=2_000, input_tokens=2_000)
    check = by_tokenizer(grown, name=None)["input_tokens"]
    assert (check.severity, check.measured) == ("degraded", pytest.approx(1 - 356 / 2_000))
    assert check.text == (
        "the server counts 2,000 input tokens on average in prompts of about 100: it uses another "
        "tokenizer, or adds its own prompt"
    )
    template = counted(usage_prompt_tokens=700, input_tokens=700)
    assert by_tokenizer(template, name=None)["input_tokens"].severity == "valid"
    grown["turn"] = [0, 1] * (len(grown) // 2)
    assert by_tokenizer(grown, name=None)["input_tokens"].severity == "valid"


@pytest.mark.parametrize(
    ("requests", "entries", "severity"),
    [(10, None, "valid"), (1_000, 10, "valid"), (1_000, None, "degraded")],
)
def test_few_lengths_may_be_short_by_chance(
    requests: int, entries: int | None, severity: str
) -> None:
    rows = counted(requests, usage_prompt_tokens=40, input_tokens=40)
    lengths = {"mean": 100, "stddev": 100, "distribution": "lognormal"}
    dataset = {"input_tokens": lengths, "entries": entries}
    config = fake_run.config(concurrency=1, requests=1, dataset=dataset)
    checks = {each.check: each for each in results(rows, config=config).verdict.checks}
    assert checks["input_tokens"].severity == severity


def test_lengths_within_their_limits_are_compared() -> None:
    short = counted(usage_prompt_tokens=120, input_tokens=120)
    lengths = {"input_tokens": {"mean": 500, "stddev": 400, "max": 120}}
    config = fake_run.config(concurrency=1, requests=1, dataset=lengths)
    checks = {each.check: each for each in results(short, config=config).verdict.checks}
    assert checks["input_tokens"].severity == "valid"


@pytest.mark.parametrize("name", [None, "gpt2"])
@pytest.mark.parametrize(
    "endpoint",
    [
        {"type": "messages", "extra_inputs": {"system": "a long text"}},
        {"type": "responses", "extra_inputs": {"instructions": "a long text"}},
        {"type": "template", "template": '{"q": {{ text|tojson }}, "context": "a long text"}'},
    ],
)
def test_prompts_that_the_config_lengthens_are_valid(
    name: str | None, endpoint: dict[str, Any]
) -> None:
    grown = counted(usage_prompt_tokens=2_000)
    assert by_tokenizer(grown, name, **endpoint)["input_tokens"].severity == "valid"


def test_sounds_are_not_compared_with_text_lengths() -> None:
    heard = counted(usage_prompt_tokens=10, input_tokens=-1)
    config = fake_run.config(
        concurrency=1,
        requests=1,
        dataset={"sounds": {"number": 1}},
        endpoint={"type": "audio_transcription"},
    )
    found = results(heard, config=config).verdict.checks
    assert "input_tokens" not in {check.check for check in found}
