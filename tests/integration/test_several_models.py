"""A run with several models, one of which the server lacks."""

from pathlib import Path

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.in_one_loop import results_of


async def test_missing_model_has_errors_for_its_share(tmp_path: Path) -> None:
    with running(MockServerConfig(ttft="2ms", itl="1ms", tokens=5, truth=True)) as mock:
        config = {
            "endpoint": {
                "url": mock.url,
                "model": "mock",
                "models": ["mock-error-404", "other"],
                "model_weights": [2, 1, 1],
                "streaming": True,
            },
            "load": {"concurrency": 4, "requests": 80},
            "dataset": {"entries": 16, "input_tokens": {"mean": 20}},
        }
        summary = await results_of(config, tmp_path, workers=2)
        assert mock.truth()["requests"] == 80
    models = summary["aiperf_svc"]["models"]
    assert [each["model"] for each in models] == ["mock", "mock-error-404", "other"]
    assert [each["request_count"]["avg"] for each in models] == [40, 0, 20]
    assert [each["error_request_count"]["avg"] for each in models] == [0, 20, 0]
    assert summary["request_count"]["avg"] == 60
    assert [each["error_details"]["code"] for each in summary["error_summary"]] == [404]
    assert summary["aiperf_svc"]["accounts"]["violations"] == []
