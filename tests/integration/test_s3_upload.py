"""Results in a bucket: whole runs and single uploads to moto's S3 server."""

import hashlib
import json
import logging
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.exports.manifest import Manifest, build_manifest, read_manifest
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.adapters.storage.bucket_runs import list_runs
from aiperf_svc.adapters.storage.tool_artifacts import write_run
from aiperf_svc.cli.main import main
from aiperf_svc.config.artifacts import S3
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support import fake_steps
from tests.support.bucket import BUCKET, ENVIRON, KEY_ID, Store
from tests.support.forked_commands import finished
from tests.support.in_one_loop import stack
from tests.support.running_command import FINISHED
from tests.support.threaded_server import in_thread


@pytest.fixture
def store(bucket_server: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with bucket_server.empty_bucket(monkeypatch):
        yield bucket_server


@pytest.fixture
def results(tmp_path: Path) -> tuple[Path, Manifest]:
    folder = tmp_path / "results"
    (folder / "logs").mkdir(parents=True)
    (folder / "records.parquet").write_bytes(bytes(range(256)))
    (folder / "verdict.json").write_text("{}")
    (folder / "logs" / "worker-0.log").write_text("one line\n")
    (folder / "logs" / "empty.log").write_text("")
    return folder, build_manifest(folder, "0123456789ab")


@pytest.fixture
def large_results(
    results: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Manifest]:
    """Return results with one file that takes two parts."""
    folder, _ = results
    # The smallest part size that S3 accepts.
    monkeypatch.setattr(uploads, "PART", 5 * 2**20)
    (folder / "records.parquet").write_bytes(bytes(range(256)) * 4 * 5_500)
    return folder, build_manifest(folder, "0123456789ab")


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def config(url: str, s3: S3) -> dict[str, Any]:
    return {
        "endpoint": {"url": url, "model": "mock", "streaming": True},
        "load": {"concurrency": 4, "requests": 40},
        "dataset": {"entries": 10, "input_tokens": {"mean": 20}},
        "artifacts": {"s3": s3.model_dump(mode="json")},
    }


# --- whole runs ------------------------------------------------------------------------------


async def test_run_is_final_when_its_bucket_is_complete(tmp_path: Path, store: Store) -> None:
    with running(MockServerConfig(ttft="2ms", tokens=3)) as mock:
        async with stack(config(mock.url, store.s3()), tmp_path) as run:
            await run.results()
            status = run.records_manager.status()
    assert status.artifact_error == ""
    place = f"s3://{BUCKET}/runs/in-one-loop-"
    assert status.uploaded_to.startswith(place)
    assert status.uploaded_to.endswith("-test")
    folder = status.uploaded_to.removeprefix(f"s3://{BUCKET}/")
    listed = json.loads(store.read(f"{folder}/manifest.json"))["files"]
    assert {"records.parquet", "profile_export.jsonl"} <= {entry["name"] for entry in listed}
    assert {
        name.removeprefix(f"{folder}/"): hashlib.sha256(store.read(name)).hexdigest()
        for name in store.names()
        if not name.endswith("/manifest.json")
    } == {entry["name"]: entry["sha256"] for entry in listed}
    written = contents(tmp_path)
    for secret in ENVIRON.values():
        assert not any(secret.encode() in content for content in written)


@pytest.mark.parametrize(
    "experiment",
    [{"repetitions": 2}, {"product": {"workers.max": [1, 2]}}],
    ids=["one shape", "two shapes"],
)
def test_the_bucket_has_a_whole_experiment(
    tmp_path: Path, store: Store, experiment: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "artifacts"
    with running(MockServerConfig(ttft="2ms", tokens=3)) as mock:
        content = config(mock.url, store.s3()) | {"experiment": experiment}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
        command = ["run", "config.yaml", "--local", "--json", "--ui", "none"]
        done = finished([*command, "--artifact-dir", str(folder)], cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["state"], found["artifact_error"]) == ("done", None), done.stderr
    place = found["uploaded_to"].removeprefix(f"s3://{BUCKET}/")
    sent = store.names()
    assert {name.removeprefix("runs/").partition("/")[0] for name in sent} == {Path(place).name}
    assert {name.removeprefix(f"{place}/") for name in sent} - {"manifest.json"} == {
        entry["name"] for entry in json.loads(store.read(f"{place}/manifest.json"))["files"]
    }
    (written,) = folder.iterdir()
    names = ["experiment.json", "report.html"]
    names += [f"trials/{t['folder']}/verdict.json" for t in found["results"]["trials"]]
    assert len(names) == 4
    assert all(store.read(f"{place}/{name}") == (written / name).read_bytes() for name in names)
    assert main(["upload", str(written)]) == 0
    assert capsys.readouterr().out.startswith(f"{found['uploaded_to']}/: ")
    assert store.names() == sent


def test_each_target_has_a_folder_in_the_bucket(tmp_path: Path, store: Store) -> None:
    with running(MockServerConfig(ttft="2ms", tokens=3)) as mock:
        targets = [{"name": name, "endpoint": {"url": mock.url}} for name in ("eu", "us")]
        content = config(mock.url, store.s3()) | {"targets": targets}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
        command = ["run", "config.yaml", "--local", "--json", "--ui", "none"]
        done = finished([*command, "--artifact-dir", str(tmp_path / "artifacts")], cwd=tmp_path)
    assert done.returncode in FINISHED, done.stderr
    assert {name.split("/")[1] for name in store.names()} == {"eu", "us"}
    for name in ("eu", "us"):
        (run,) = list_runs(store.s3(f"runs/{name}"))
        assert run.is_whole


async def test_failed_upload_is_reported_and_repeatable(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    s3 = S3(url="s3://another-bucket/runs", endpoint_url=store.url)
    with running(MockServerConfig(ttft="2ms", tokens=3)) as mock:
        async with stack(config(mock.url, s3), tmp_path) as run:
            summary = await run.results()
            status = run.records_manager.status()
            assert run.records_manager._api is not None
            url = f"http://127.0.0.1:{run.records_manager._api.port}"  # type: ignore[attr-defined]
            async with ResultsClient(url, token="token") as client:
                fetched = await client.download_all(tmp_path / "fetched")
    assert summary["request_count"]["avg"] == 40
    assert (status.state, status.uploaded_to) == ("done", "")
    assert status.artifact_error.startswith("cannot upload the results to s3://another-bucket/")
    assert "NoSuchBucket" in status.artifact_error
    folder = tmp_path / "artifacts"
    names = {entry.name for entry in read_manifest(folder).files} | {"manifest.json"}
    assert {entry.name for entry in fetched.files} >= names - {"manifest.json"}

    command = ["upload", str(folder), "--s3-url", f"s3://{BUCKET}/mine"]
    assert main(command) == 0
    assert f"{len(names) - 1} files sent, 0 already there" in capsys.readouterr().out
    assert {key.split("/", 2)[2] for key in store.names()} == names
    assert main(command) == 0
    assert f"0 files sent, {len(names) - 1} already there" in capsys.readouterr().out
    (folder / "verdict.json").write_text("{}")
    assert main(command) == 1
    assert "verdict.json: missing, or changed" in capsys.readouterr().err


def test_run_of_a_tool_is_uploaded_later(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, fake_steps.result(), ())
    to = ["--s3-url", f"s3://{BUCKET}/mine", "--s3-endpoint-url", store.url]
    assert main(["upload", str(tmp_path), *to]) == 0
    assert capsys.readouterr().out.startswith(f"s3://{BUCKET}/mine/")
    assert any(name.endswith("/results.json") for name in store.names())


def test_target_run_is_uploaded_into_its_folder(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bench-20261127T030000Z" / "eu"
    folder.mkdir(parents=True)
    write_run(folder, fake_steps.result(), ())
    to = ["--s3-url", f"s3://{BUCKET}/mine", "--s3-endpoint-url", store.url]
    assert main(["upload", str(folder), *to]) == 0
    assert capsys.readouterr().out.startswith(f"s3://{BUCKET}/mine/eu/")


# --- single uploads --------------------------------------------------------------------------


def test_second_upload_sends_only_missing_files(
    store: Store, results: tuple[Path, Manifest]
) -> None:
    folder, manifest = results
    first = uploads.upload(folder, manifest, store.s3(), into="run")
    assert (len(first.sent), first.kept) == (4, ())
    store.client.delete_object(Bucket=BUCKET, Key="runs/run/verdict.json")
    (folder / "logs" / "worker-0.log").write_text("one other\n")
    second = uploads.upload(folder, build_manifest(folder, "r"), store.s3(), into="run")
    assert second.sent == ("logs/worker-0.log", "verdict.json")
    assert second.kept == ("logs/empty.log", "records.parquet")
    assert store.read("runs/run/logs/worker-0.log") == b"one other\n"


def test_a_file_larger_than_a_part_arrives_whole(
    store: Store, large_results: tuple[Path, Manifest]
) -> None:
    folder, manifest = large_results
    assert (folder / "records.parquet").stat().st_size > uploads.PART
    uploads.upload(folder, manifest, store.s3(""), into="run")
    assert store.read("run/records.parquet") == (folder / "records.parquet").read_bytes()


@pytest.mark.parametrize("name", ["logs/worker-0.log", "records.parquet"])
def test_grown_file_is_sent_as_in_the_manifest(
    store: Store, large_results: tuple[Path, Manifest], name: str
) -> None:
    folder, manifest = large_results
    before = (folder / name).read_bytes()
    with (folder / name).open("ab") as file:
        file.write(b"more")
    uploads.upload(folder, manifest, store.s3(), into="run")
    assert store.read(f"runs/run/{name}") == before


def test_unfinished_upload_leaves_no_manifest(store: Store, results: tuple[Path, Manifest]) -> None:
    folder, manifest = results
    (folder / "verdict.json").unlink()
    with pytest.raises(EnvironmentProblem, match=r"verdict\.json: cannot read it"):
        uploads.upload(folder, manifest, store.s3(), into="run")
    assert "runs/run/manifest.json" not in store.names()


def test_unfinished_second_upload_leaves_no_manifest(
    store: Store, results: tuple[Path, Manifest]
) -> None:
    folder, manifest = results
    uploads.upload(folder, manifest, store.s3(), into="run")
    (folder / "verdict.json").write_text('{"verdict": "valid"}')
    changed = build_manifest(folder, "r")
    (folder / "verdict.json").unlink()
    with pytest.raises(EnvironmentProblem, match=r"verdict\.json: cannot read it"):
        uploads.upload(folder, changed, store.s3(), into="run")
    assert "runs/run/manifest.json" not in store.names()


def test_upload_ends_at_its_time_limit(store: Store, results: tuple[Path, Manifest]) -> None:
    with pytest.raises(EnvironmentProblem, match="the time for an upload has expired"):
        uploads.upload(*results, store.s3(), into="run", limit_s=0)
    assert store.names() == []


# --- refusals --------------------------------------------------------------------------------


class _Refusing(BaseHTTPRequestHandler):
    """Responds like Amazon to a wrong key, with the key and the signed request in the body."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        body = (
            "<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match."
            f"</Message><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>"
            f"<StringToSign>{self.headers['x-amz-security-token']}</StringToSign></Error>"
        ).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_refusal_quotes_the_store_without_the_key(
    results: tuple[Path, Manifest], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)) as url:
        s3 = S3(url=f"s3://{BUCKET}", endpoint_url=url)
        with pytest.raises(EnvironmentProblem) as refused:
            uploads.upload(*results, s3, into="run", environ=ENVIRON)
    assert "SignatureDoesNotMatch: The signature does not match." in str(refused.value)
    texts = [str(refused.value), str(refused.value.__cause__), caplog.text]
    for secret in ENVIRON.values():
        assert not any(secret in text for text in texts)


@pytest.fixture
def checked(store: Store) -> Callable[..., str]:
    """Return a function that checks a bucket with the tests' keys and returns the problem."""

    def check(url: str = f"s3://{BUCKET}/runs", endpoint_url: str = store.url) -> str:
        s3 = S3(url=url, endpoint_url=endpoint_url)
        return uploads.bucket_problem(s3, ENVIRON)

    return check


def test_bucket_is_checked_before_a_run(checked: Callable[..., str]) -> None:
    assert checked() == ""
    assert checked("s3://another-bucket").startswith("NoSuchBucket")


def test_unreachable_store_is_found_before_a_run(checked: Callable[..., str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert checked(endpoint_url=f"http://127.0.0.1:{closed.getsockname()[1]}")


def test_refused_keys_are_found_before_a_run(checked: Callable[..., str]) -> None:
    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)) as url:
        assert checked(endpoint_url=url).startswith("SignatureDoesNotMatch: ")


def test_missing_keys_and_a_missing_library_are_named(
    results: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = S3(url=f"s3://{BUCKET}")
    with pytest.raises(EnvironmentProblem, match="AWS_SECRET_ACCESS_KEY not set"):
        uploads.upload(*results, s3, into="run", environ={"AWS_ACCESS_KEY_ID": KEY_ID})
    monkeypatch.setattr(uploads, "LIBRARY", "a_library_that_is_not_there")
    with pytest.raises(EnvironmentProblem, match="pip install"):
        uploads.upload(*results, s3, into="run", environ=ENVIRON)


def test_run_names_in_a_bucket_sort_by_time() -> None:
    first = uploads.folder_of("bench", "cafe", 1_795_227_878_942_879_812)
    assert first == "bench-20261121T022438Z-cafe"
