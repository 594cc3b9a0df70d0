"""Nightly runs in a bucket: their history, and a webhook with the comparison."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.exports.result_files import find_results, read_run
from aiperf_svc.adapters.storage.bucket_runs import list_runs, runs_of
from aiperf_svc.adapters.trackers import webhook
from aiperf_svc.cli.main import main
from aiperf_svc.config.artifacts import Artifacts, Webhook
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.ending import call_webhook
from aiperf_svc.runner.options import RunOptions, StackOptions
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.stack.placement import run_stacks
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.bucket import BUCKET, Store
from tests.support.releases import release_target
from tests.support.runs_to_compare import inference_run
from tests.support.threaded_server import in_thread

NAME = "benchmark"
NIGHTS = ("20261101T030000Z", "20261102T030000Z", "20261103T030000Z")
NEW = "f" * 16


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write folders of two nights, of a third with an unfinished upload, and of a new run."""
    folder = tmp_path_factory.mktemp("runs")
    made = [
        inference_run(folder / night, f"{number:016x}", seed=number)
        for number, night in enumerate(NIGHTS)
    ]
    (made[-1] / "manifest.json").unlink()
    return [*made, inference_run(folder / "new", NEW)]


@pytest.fixture
def nightly(
    bucket_server: Store, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """Yield a bucket with the three nights."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket_server.url)
    with bucket_server.empty_bucket(monkeypatch):
        for number, (night, folder) in enumerate(zip(NIGHTS, runs, strict=False)):
            bucket_server.put(folder, f"nightly/{NAME}-{night}-{number:016x}")
        yield bucket_server


@dataclass
class Receiver:
    """A server that accepts or refuses webhook posts."""

    statuses: list[int] = field(default_factory=list)
    """Statuses of the next responses. Later responses have status 204."""
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.headers.append(dict(self.headers))
            found.bodies.append(json.loads(body))
            status = found.statuses.pop(0) if found.statuses else 204
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{found.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(webhook, "PAUSE_S", 0.0)
    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as found.url:
        yield found


def outcome_of(folder: Path, *, uploaded_to: str = "") -> RunOutcome:
    path = find_results(folder)
    assert path is not None
    return RunOutcome(
        run_id=NEW,
        state="done",
        reason="",
        results=read_run(path),
        artifacts=folder,
        uploaded_to=uploaded_to,
        more={"stack": "bench-night"},
    )


def settings(receiver: Receiver, store: Store | None = None, **keys: Any) -> Artifacts:
    s3 = store.s3("nightly").model_dump() if store is not None else None
    return Artifacts.model_validate({"s3": s3, "webhook": {"url": receiver.url, **keys}})


def test_history_reads_whole_runs_of_a_bucket(
    nightly: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{BUCKET}/nightly"
    assert main(["history", url, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {each["folder"] for each in runs} == {
        f"{url}/{NAME}-{NIGHTS[0]}-{0:016x}",
        f"{url}/{NAME}-{NIGHTS[1]}-{1:016x}",
    }


def test_history_of_one_run_by_its_url(nightly: Store, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"s3://{BUCKET}/nightly/{NAME}-{NIGHTS[0]}-{0:016x}"
    assert main(["history", url, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["folder"] == url


def test_history_of_several_targets_names_their_folders(
    nightly: Store, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url, (eu, us) = f"s3://{BUCKET}/both", runs[:2]
    nightly.put(eu, f"both/eu/{NAME}-{NIGHTS[0]}-{0:016x}")
    nightly.put(us, f"both/us/{NAME}-{NIGHTS[0]}-{1:016x}")
    assert main(["history", url]) == ExitCode.BAD_CONFIG
    assert capsys.readouterr().err == (
        f"error: {url}: no run directly in it; name a folder with runs, such as that of a target "
        f"or cluster: {url}/eu, {url}/us\n"
    )
    assert main(["history", f"{url}/eu", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["folder"] == f"{url}/eu/{NAME}-{NIGHTS[0]}-{0:016x}"


def test_history_leaves_out_runs_of_a_target(
    nightly: Store, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{BUCKET}/nightly"
    nightly.put(runs[0], f"nightly/eu/{NAME}-{NIGHTS[2]}-{4:016x}")
    assert main(["history", url, "--json"]) == 0
    text, error = capsys.readouterr()
    assert len(json.loads(text)["runs"]) == 2
    assert error == f"note: {url}: runs in other folders are left out: {url}/eu\n"


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("s3://no-such-bucket/nightly", 1, "cannot read s3://no-such-bucket/nightly at http"),
        (f"s3://{BUCKET}/empty", 2, "no run with a manifest"),
        ("s3://", 2, "error: 's3://': expected a bucket and a prefix such as s3://bucket/prefix"),
    ],
)
def test_unreadable_bucket_is_one_line(
    nightly: Store, capsys: pytest.CaptureFixture[str], url: str, code: int, message: str
) -> None:
    assert main(["history", url]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_wrong_endpoint_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    assert main(["history", f"s3://{BUCKET}/nightly"]) == 2
    expected = "AWS_ENDPOINT_URL: 'localhost:9000': expected an address such as http://host:8000"
    assert expected in capsys.readouterr().err


def test_missing_keys_of_a_bucket_are_named(
    nightly: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert main(["history", f"s3://{BUCKET}/nightly"]) == 1
    assert "AWS_ACCESS_KEY_ID not set in the environment" in capsys.readouterr().err


def test_trials_are_not_listed_as_runs() -> None:
    keys = ["e/experiment.json", "e/manifest.json", "e/trials/1/results.json", "r/results.json"]
    found = runs_of("s3://b", keys)
    assert [(each.url, each.is_whole) for each in found] == [
        ("s3://b/e", True),
        ("s3://b/r", False),
    ]
    assert found[0].keys == ("e/experiment.json", "e/manifest.json", "e/trials/1/results.json")


def test_webhook_has_verdict_and_comparison_with_last_night(
    nightly: Store,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIPERF_WEBHOOK_SECRET", "Bearer hush")
    own = f"s3://{BUCKET}/nightly/{NAME}-20261104T030000Z-{15:016x}"
    slow = inference_run(tmp_path / "slow", NEW, ttft_ms=60.0)
    outcome = outcome_of(slow, uploaded_to=own)
    call_webhook(outcome, settings(receiver, nightly))
    (body,) = receiver.bodies
    assert receiver.headers[0]["Authorization"] == "Bearer hush"
    assert (body["stack"], body["verdict"], body["exit_code"]) == ("bench-night", "valid", 0)
    assert body["base"] == f"s3://{BUCKET}/nightly/{NAME}-{NIGHTS[1]}-{1:016x}"
    assert body["judgement"] == "not judged"
    rows = {row["metric"]: row for row in body["rows"]}
    assert rows["time_to_first_token.p50"]["delta"] > 0.5
    assert body["figures"]["time_to_first_token.p99"] > 60
    assert f"results: {own}" in body["text"]
    assert "hush" not in json.dumps(body) + capsys.readouterr().err


def test_webhook_compares_no_run_with_a_target(
    nightly: Store, receiver: Receiver, runs: list[Path]
) -> None:
    nightly.put(runs[0], f"nightly/eu/{NAME}-20261103T030000Z-{4:016x}")
    own = f"s3://{BUCKET}/nightly/{NAME}-20261104T030000Z-{15:016x}"
    call_webhook(outcome_of(runs[-1], uploaded_to=own), settings(receiver, nightly))
    (body,) = receiver.bodies
    assert body["base"] == f"s3://{BUCKET}/nightly/{NAME}-{NIGHTS[1]}-{1:016x}"


def test_webhook_of_first_night_explains_missing_comparison(
    nightly: Store, receiver: Receiver, runs: list[Path]
) -> None:
    own = f"s3://{BUCKET}/nightly/{NAME}-{NIGHTS[0]}-{0:016x}"
    call_webhook(outcome_of(runs[-1], uploaded_to=own), settings(receiver, nightly))
    (body,) = receiver.bodies
    assert body["judgement"] is None
    assert body["not_compared"] == f"s3://{BUCKET}/nightly has no earlier run of {NAME}"


def test_webhook_compares_with_a_named_folder(receiver: Receiver, runs: list[Path]) -> None:
    base = runs[0]
    call_webhook(outcome_of(runs[-1]), settings(receiver, compare_with=str(base)))
    (body,) = receiver.bodies
    assert (body["base"], body["not_compared"]) == (str(base), None)
    assert all(row["word"] == "?" for row in body["rows"])


@pytest.mark.parametrize(
    ("statuses", "calls", "message"),
    [
        ([500, 503], 3, "note: the result was posted to 127.0.0.1"),
        ([500, 500, 500], 3, "warning: the webhook was not called: 127.0.0.1"),
        ([403], 1, " responds 403 Forbidden"),
        ([302], 1, " responds 302 Found"),
    ],
)
def test_refused_webhook_is_reported_without_its_secrets(
    receiver: Receiver,
    runs: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: list[int],
    calls: int,
    message: str,
) -> None:
    monkeypatch.setenv("AIPERF_WEBHOOK_SECRET", "hush")
    monkeypatch.setenv("AIPERF_WEBHOOK_URL", f"{receiver.url}/services/T0/secret")
    receiver.statuses = statuses
    outcome = outcome_of(runs[-1])
    call_webhook(outcome, Artifacts.model_validate({"webhook": {"header": "X-Token"}}))
    error = capsys.readouterr().err
    assert message in error
    assert "secret" not in error
    assert "hush" not in error
    assert len(receiver.bodies) == calls
    assert receiver.headers[0]["X-Token"] == "hush"
    assert outcome.exit_code is ExitCode.OK


def test_unreachable_webhook_changes_no_exit_code(
    receiver: Receiver, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcome_of(runs[-1])
    artifacts = Artifacts.model_validate({"webhook": {"url": "http://127.0.0.1:1/x"}})
    call_webhook(outcome, artifacts)
    assert "127.0.0.1:1: " in capsys.readouterr().err
    assert outcome.exit_code is ExitCode.OK


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"kind": "mock"}, "Pulumi|passphrase"),
        ({**release_target(), "from": {"manifests": "missing.yaml"}}, "missing.yaml"),
    ],
    ids=["prerequisites", "release"],
)
def test_error_before_the_stack_is_posted(
    target: dict[str, Any], reason: str, receiver: Receiver
) -> None:
    data = {
        "name": "night",
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"concurrency": 1, "duration": "1s"},
        "deployment": {"target": target},
        "artifacts": {"webhook": {"url": receiver.url}},
    }
    request = StackRequest(stack="s", config=parse_benchmark(data, ""), environ={"PATH": "/none"})
    with pytest.raises(AiperfError, match=reason) as raised:
        run_stacks(request, StackOptions(run=RunOptions(ui="none"), yes=True))
    (body,) = receiver.bodies
    assert (body["name"], body["exit_code"]) == ("night", raised.value.exit_code)
    assert body["reason"] == str(raised.value)


def test_webhook_without_url_is_refused_before_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "endpoint: {url: 'http://127.0.0.1:1', model: m}\n"
        "load: {concurrency: 1, requests: 1}\nartifacts: {webhook: {}}\n"
    )
    assert main(["profile", "--config", str(config)]) == ExitCode.BAD_CONFIG
    assert "artifacts.webhook: no url, and AIPERF_WEBHOOK_URL is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://user:hush@host/x", ""),
        ("https://host/hush x", ""),
        ("https://host/hush-é", ""),
        ("https://[host/hush", ""),
        ("https://a..b/hush", ""),
        (f"https://{'a' * 64}/hush", ""),
        ("https://host/x", "hush-€"),
    ],
)
def test_unusable_webhook_is_refused_without_its_secrets(url: str, secret: str) -> None:
    environ = {webhook.URL_VARIABLE: url, webhook.SECRET_VARIABLE: secret}
    found = webhook.problem(Webhook(), environ)
    assert found
    assert "hush" not in found


@pytest.mark.parametrize(
    "url",
    [
        "https://tenant.webhook.office.com/webhookb2/a@b/IncomingWebhook/c\n",
        "HTTPS://Host_1.example.:8443?x=1",
        "http://[::1]:80/x",
    ],
)
def test_usable_webhook_urls_are_no_problem(url: str) -> None:
    assert not webhook.problem(Webhook(), {webhook.URL_VARIABLE: url})


def test_unfinished_upload_is_no_comparison_base(nightly: Store) -> None:
    found = list_runs(nightly.s3("nightly"))
    assert [each.is_whole for each in found] == [True, True, False]
    assert webhook.last_before(found, NAME, "") == found[1]
    assert webhook.last_before(found, "bench", "") is None
