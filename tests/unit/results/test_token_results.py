"""A whole run to the lengths of its responses, and why they ended."""

from typing import Any

import fake_run
import numpy as np
import pytest
from summarised import results

from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase


def test_output_lengths_are_held_against_what_was_asked_for() -> None:
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


def test_a_length_that_is_only_a_maximum_is_not_checked() -> None:
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
def test_responses_without_a_token_count_are_named_where_others_have_one(
    columns: dict[str, int], severity: str
) -> None:
    rows = np.concatenate([fake_run.request(tokens=8, input_tokens=7) for _ in range(20)])
    for name, value in columns.items():
        rows[name][::2] = value
    checks = {check.check: check for check in results(rows).verdict.checks}
    assert checks["token_counts"].severity == severity


def test_a_run_in_which_no_response_has_a_token_count_has_no_sum_of_tokens() -> None:
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
def test_a_missing_token_count_is_no_surprise_where_there_is_nothing_to_count(
    columns: dict[str, int], settings: dict[str, Any]
) -> None:
    rows = np.concatenate([fake_run.request(output_tokens=-1, **columns) for _ in range(20)])
    config = fake_run.config(concurrency=1, requests=20, **settings)
    assert results(rows, config=config).verdict.notes == ()


def test_finish_reasons_of_the_phase_are_counted_by_name() -> None:
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
