"""`profile`, `run` and `bench` up to the call of the runner, which a recorder replaces."""

from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aiperf_svc.adapters.inference import listeners
from aiperf_svc.cli.commands import local_runs
from aiperf_svc.cli.main import main
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.options import RunOptions

REPOSITORY = Path(__file__).parents[3]
CLOSED = ("profile", "-u", "localhost:1", "-m", "m", "--concurrency", "1", "--request-count", "1")


class Recorder:
    """Replaces the runner: records its arguments and asks the server for its models."""

    def __init__(self) -> None:
        self.config: BenchmarkConfig | None = None
        self.options = RunOptions()
        self.is_server_there = False
        self.code = ExitCode.OK

    def run_local(
        self, config: BenchmarkConfig, options: RunOptions, *, trials: object, forks: None
    ) -> ExitCode:
        self.config, self.options = config, options
        address = urlsplit(config.endpoint.url)
        if address.port != 1:
            connection = HTTPConnection(address.hostname or "", address.port, timeout=10)
            connection.request("GET", "/v1/models")
            self.is_server_there = connection.getresponse().status == 200
            connection.close()
        return self.code


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(local_runs, "run_local", recorder.run_local)
    monkeypatch.setattr(listeners, "refuses", lambda _: False)
    monkeypatch.chdir(REPOSITORY)
    return recorder


def test_the_exit_code_is_the_runners(runner: Recorder) -> None:
    for runner.code in ExitCode:
        assert main(CLOSED) == runner.code


def test_key_reaches_only_the_environment_of_services(
    runner: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CLOSED, "--api-key", "hush"]) == 0
    assert runner.config is not None
    assert runner.options.secrets == {"AIPERF_TARGET_API_KEY": "hush"}
    assert runner.config.endpoint.api_key_env == "AIPERF_TARGET_API_KEY"
    assert "hush" not in str(runner.config)
    assert runner.options.cli_command.endswith("--request-count 1 --api-key ***")
    assert "hush" not in "".join(capsys.readouterr())


def test_variable_named_by_config_is_required_and_passed(
    runner: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "endpoint: {url: 'http://localhost:1', model: m, api_key_env: MY_KEY}\n"
        "load: {concurrency: 1, requests: 1}\n"
    )
    monkeypatch.delenv("MY_KEY", raising=False)
    assert main(["profile", "--config", str(path)]) == ExitCode.BAD_CONFIG
    assert runner.config is None
    monkeypatch.setenv("MY_KEY", "hush")
    assert main(["profile", "--config", str(path)]) == 0
    assert runner.options.secrets == {"MY_KEY": "hush"}


def test_display_options_are_passed_on(runner: Recorder) -> None:
    assert main([*CLOSED, "--json", "--ui", "simple", "-v"]) == 0
    options = runner.options
    assert (options.json, options.ui, options.verbose) == (True, "plain", True)


def test_chosen_defaults_are_reported(runner: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CLOSED[:-2]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("note: neither --request-count nor --benchmark-duration: 10 requests")


def test_bench_measures_a_running_mock_server(runner: Recorder) -> None:
    assert main(["bench", "--concurrency", "3"]) == 0
    assert runner.is_server_there
    assert runner.config is not None
    assert runner.config.endpoint.streaming
    assert (runner.config.load.concurrency, runner.config.load.requests) == (3, 200)


def test_local_run_of_stack_starts_its_mock_server(runner: Recorder) -> None:
    assert main(["run", "bench-smoke", "--local", "--artifact-dir", "out"]) == 0
    assert runner.is_server_there
    assert runner.config is not None
    assert runner.config.name == "bench-smoke"
    assert runner.config.artifacts.dir == "out"


def test_a_stack_can_be_pointed_at_another_server(runner: Recorder) -> None:
    assert main(["run", "bench-vllm", "--local", "--url", "localhost:1"]) == 0
    assert main(["run", "bench-smoke", "--local", "--url", "http://localhost:1"]) == 0
    assert runner.config is not None
    assert runner.config.endpoint.url == "http://localhost:1"
    assert not runner.is_server_there


def test_wrong_arguments_of_mock_server_are_refused(
    runner: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "endpoint: {url: 'http://target', model: m}\nload: {concurrency: 1, requests: 1}\n"
        "deployment: {target: {kind: mock, args: [--ttfft, 20ms]}}\n"
    )
    assert main(["run", str(path), "--local"]) == ExitCode.BAD_CONFIG
    assert runner.config is None
    message = capsys.readouterr().err
    assert message.startswith("error: deployment.target.args: --ttfft is not a flag; did you mean")
