"""Tokenizers of a hub are found, rejected or unreachable before anything starts, within seconds.

The hub is a local server in HF_ENDPOINT.
"""

import asyncio
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer, models, pre_tokenizers
from tqdm import tqdm  # type: ignore[import-untyped]

from aiperf_svc.adapters.cluster.preflight.checklist import check_tokenizer
from aiperf_svc.adapters.datasets import hub_files
from aiperf_svc.adapters.datasets.tokenizers import load_token_counter, resolve_tokenizer
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import Tokenizer as Options
from aiperf_svc.domain.errors import ConfigError
from tests.support.forked_commands import finished
from tests.support.small_configs import small_config
from tests.support.threaded_server import in_thread

BOUND_S = 60.0
"""Time limit of the command on a busy machine. The tokenizer search takes at most 8 s."""
COMMIT = "c" * 40
MODEL = Options(name="some/model")


def content() -> bytes:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "one": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str().encode()


@contextmanager
def hub(body: bytes | None, *, status: int = 404, error: str = "RepoNotFound") -> Iterator[str]:
    """Run a hub that has one file or none, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200 if body is not None else status)
            if body is None:
                self.send_header("X-Error-Code", error)
                self.send_header("Content-Length", "0")
            else:
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Suppress log output."""

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


@contextmanager
def silent_hub() -> Iterator[str]:
    """Run a hub that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def closed_hub() -> Iterator[str]:
    """Reserve a port on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def profile(folder: Path, address: str) -> "subprocess.CompletedProcess[str]":
    """Run a command whose inference server is never contacted."""
    usual = ("PROXY", "_OFFLINE")
    hidden = {k: v for k, v in os.environ.items() if not k.upper().endswith(usual)}
    hub = {"HF_ENDPOINT": address, "HF_HOME": str(folder / "hub"), "HOME": str(folder)}
    with socket.create_server(("127.0.0.1", 0)) as target:
        url = f"http://127.0.0.1:{target.getsockname()[1]}"
        return finished(
            ["profile", "-u", url, "-m", "mock", "--concurrency", "1",
             "--request-count", "1", "--tokenizer", "some/model", "--ui", "none"],
            cwd=folder, env=hidden | hub, timeout=120,
        )  # fmt: skip


UseHub = Callable[..., None]


@pytest.fixture
def use_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UseHub:
    """Return a function that makes this process use a hub with its own cache. It changes what the
    hub's client reads from the environment at import."""
    monkeypatch.setenv("NO_PROXY", "*")
    # The client's progress bar starts a thread that stays.
    monkeypatch.setattr(tqdm, "monitor_interval", 0)

    def use(address: str, cache: str = "cache", *, is_offline: bool = False) -> None:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    return use


def count(options: Options) -> int:
    """Return the number of tokens of a two-token text."""
    return load_token_counter(options).count("one one")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (closed_hub, "cannot be reached: "),
        (silent_hub, "cannot be reached: "),
        (lambda: hub(None), "does not give it: "),
        (lambda: hub(b"no tokenizer"), "is not a tokenizer"),
    ],
    ids=["closed", "silent", "no such model", "no tokenizer"],
)
def test_missing_tokenizer_ends_the_command_early(tmp_path: Path, where, reason: str) -> None:  # type: ignore[no-untyped-def]
    with where() as address:
        began = time.monotonic()
        done = profile(tmp_path, address)
        took_s = time.monotonic() - began
    assert done.returncode == 2, done.stderr
    assert took_s < BOUND_S
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: tokenizer.name: ")
    assert reason in lines[0]
    assert "give the path of a tokenizer.json file, or of a folder that holds one" in lines[0]
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (503, "", "cannot be reached: status 503"),
        (401, "", "does not give it: "),
        (404, "EntryNotFound", "does not give it: "),
    ],
    ids=["unavailable", "private", "no file"],
)
def test_hub_response_is_in_the_error(
    use_hub: UseHub, status: int, error: str, reason: str
) -> None:
    with hub(None, status=status, error=error) as address:
        use_hub(address)
        with pytest.raises(ConfigError, match=reason) as caught:
            resolve_tokenizer(MODEL)
    assert str(caught.value).startswith("tokenizer.name: ")
    assert "give the path of a tokenizer.json file" in str(caught.value)


def test_hub_tokenizer_is_fetched_once_and_cached(use_hub: UseHub) -> None:
    with hub(content()) as address:
        use_hub(address)
        assert (resolve_tokenizer(MODEL), count(MODEL)) == ("", 2)
    with closed_hub() as address:
        use_hub(address)
        note = resolve_tokenizer(MODEL)
        assert note.startswith("tokenizer.name: 'some/model' is the cache's: ")
        assert count(MODEL) == 2


def test_disabled_hub_is_not_contacted(use_hub: UseHub) -> None:
    with hub(content()) as address:
        use_hub(address)
        assert resolve_tokenizer(MODEL) == ""
        use_hub(address, is_offline=True)
        note = resolve_tokenizer(MODEL)
        assert note.startswith("tokenizer.name: 'some/model' is the cache's: HF_HUB_OFFLINE")
        use_hub(address, "empty", is_offline=True)
        with pytest.raises(ConfigError, match="cannot be reached: HF_HUB_OFFLINE is set; "):
            resolve_tokenizer(MODEL)


def config(**deployment: object) -> BenchmarkConfig:
    return small_config(
        "http://server:8000", name="tokens", tokenizer={"name": "some/model"}, deployment=deployment
    )


@pytest.mark.parametrize(
    ("error", "image", "state"),
    [
        (None, None, "ok"),
        (hub_files.HubRefused("404\x1b[2J"), None, "failed"),
        (hub_files.HubRefused("404"), {"name": "registry/own:1"}, "warning"),
        (hub_files.HubUnreachable("no route"), None, "not checked"),
    ],
)
def test_preflight_reports_what_the_hub_shows(
    error: Exception | None, image: object, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str, revision: str, *, timeout_s: float) -> None:
        assert (name, revision) == ("some/model", "main")
        if error is not None:
            raise error

    monkeypatch.setattr(hub_files, "find_on_hub", find)
    check = asyncio.run(check_tokenizer(config(**({"image": image} if image else {}))))
    assert check is not None
    assert check.state == state
    assert check.detail.isprintable()


def test_path_is_not_requested_from_the_hub(tmp_path: Path) -> None:
    plain = config()
    (tmp_path / "tokenizer.json").write_bytes(content())
    for name in (None, str(tmp_path), "/not/there"):
        tokenizer = plain.tokenizer.model_copy(update={"name": name})
        checked = plain.model_copy(update={"tokenizer": tokenizer})
        assert asyncio.run(check_tokenizer(checked)) is None
