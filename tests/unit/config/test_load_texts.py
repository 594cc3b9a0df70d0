"""The description of a load in the report and in the review of a stack."""

import pytest

from aiperf_svc.config.load import Load, describe_load


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"request_rate": 20, "concurrency": 8}, ["20 requests/s (poisson)", "8 concurrent"]),
        ({"request_rate": 1_000_000}, ["1,000,000 requests/s (poisson)"]),
        (
            {"stages": [{"rate": 10, "duration": "30s"}, {"rate": 50, "duration": "2m"}]},
            ["10/s for 30s, 50/s for 2m (poisson)"],
        ),
        (
            {"rate_series": [{"at": 0, "rate": 5}, {"at": "1m", "rate": 20}]},
            ["5 to 20 requests/s in 2 points (poisson)"],
        ),
        (
            {"request_rate": 20, "bursts": {"rate": 200, "length": "5s", "every": "1m"}},
            ["20 requests/s (poisson)", "every 1m a burst of 200 requests/s for 5s"],
        ),
        (
            {"bursts": {"rate": 200, "length": "5s", "every": "1m"}},
            ["every 1m a burst of 200 requests/s for 5s (poisson)"],
        ),
        (
            {"user_centric": {"rate": 7.5, "users": 1_500}},
            ["7.5 requests/s of 1,500 users, each by its own clock"],
        ),
        (
            {"fixed_schedule": True, "fixed_schedule_end_offset": "90s", "replay_speedup": 2},
            ["the trace's own times to 90s at 2 times its speed"],
        ),
        (
            {"concurrency": 8, "prefill_concurrency": 2, "cancellation": {"rate": "5%"}},
            ["8 concurrent", "2 in prefill", "5% of the clients disconnect after 0s"],
        ),
    ],
)
def test_every_kind_of_load_has_words(load: dict[str, object], words: list[str]) -> None:
    made = Load.model_validate(load | {"requests": 100})
    assert describe_load(made, with_pattern=True) == words
