"""A server sends texts that attack the reader's terminal, spreadsheet or browser. All output of a
run escapes them."""

import csv
import json
import os
import pty
import re
import select
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.forked_commands import ForkedCommand
from tests.support.threaded_server import in_thread

WAIT_S = 120.0
TITLE = "\x1b]0;owned\x07"
ERASE = "\x1b[2J\x9b2J"
MARKUP = "[bold red]BOLD[/bold red][link=http://evil]x[/link]"
HTML = "<script>alert(1)</script>"
FORMULA = "=cmd|' /C calc'!A0"
FORGED = "\nerror: forged line\r\n"
TURNED = "\u202eknil\u2066"
HOSTILE = f"{FORMULA}{TITLE}{ERASE}{MARKUP}{HTML}{FORGED}{TURNED}\x00\x7f" + "long " * 20_000
OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colours and cursor movements of our own display. HOSTILE alone contains none of them."""


class Hostile(BaseHTTPRequestHandler):
    """Rejects requests in four ways with the same text."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Hostile.count += 1
        kind = Hostile.count % 4
        error = json.dumps({"error": {"message": HOSTILE, "type": HOSTILE[:99]}}).encode()
        status, body, content_type = 200, error, "application/json"
        if kind == 0:
            status = 500
        elif kind == 1:
            status, body, content_type = 418, HOSTILE.encode(), "text/plain"
        elif kind == 2:
            body, content_type = b"data: " + error + b"\n\n", "text/event-stream"
        self.send_response(status, "I\x1b[5mblink")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress log output."""


@pytest.fixture
def server() -> Iterator[str]:
    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Hostile)) as url:
        yield url


def on_a_terminal(folder: Path, *arguments: str) -> str:
    """Return everything that the command writes to its terminal."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"HOME": str(folder), "TERM": "xterm-256color", "COLUMNS": "120"}
    process = ForkedCommand(arguments, cwd=folder, env=environ, terminal_fd=theirs)
    os.close(theirs)
    written, end = b"", time.monotonic() + WAIT_S
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                try:
                    written += os.read(ours, 65536)
                except OSError:
                    break  # the last process has closed the terminal
        process.wait(timeout=max(1.0, end - time.monotonic()))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return written.decode()


def assert_harmless(text: str, *, breaks: str = "\n") -> None:
    """Fail if the text contains control characters other than line breaks."""
    for line in re.split(f"[{breaks}]", text):
        assert line.isprintable(), ascii(line[:300])


@pytest.mark.parametrize("ui", ["rich", "plain"])
def test_server_texts_are_safe_wherever_shown(server: str, tmp_path: Path, ui: str) -> None:
    shown = on_a_terminal(
        tmp_path, "profile", "-u", server, "-m", "mock", "--streaming", "--concurrency", "2",
        "--request-count", "40", "--ui", ui,
    )  # fmt: skip
    plain = OWN_SEQUENCES.sub("", shown)
    assert r"\x1b" in plain, shown
    assert_harmless(plain, breaks="\r\n\t")
    assert "\x1b[2J" not in shown
    assert not re.search(r"^\s*error: forged line", plain, re.MULTILINE)
    assert MARKUP[:20] in plain, "markup is shown as it is"

    folder = next((tmp_path / "artifacts").iterdir())
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    assert len(files) > 8
    for path in files:
        text = path.read_text()
        assert_harmless(text, breaks="\n\t")
        assert len(max(text.splitlines(), key=len, default="")) < 60_000, path
    for path in folder.glob("*.csv"):
        for row in csv.reader(path.read_text().splitlines()):
            assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row)
    page = (folder / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert HTML not in page
    # The page's own scripts contain data of its plots and the zoom code.
    openings = re.findall(r"<script.{0,40}", page)
    own = ('<script type="application/json">', "<script>/* uPlot:")
    assert all(opening.startswith(own) for opening in openings), openings
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    messages = [e["error_details"]["message"] for e in summary["error_summary"]]
    assert messages
    for message in messages:
        assert message.isprintable()
        assert len(message) < 700
    for line in (folder / "profile_export.jsonl").read_text().splitlines():
        assert (json.loads(line).get("error") or {}).get("message", "").isprintable()
    parquet = (folder / "records.parquet").read_bytes()
    assert TITLE.encode() not in parquet
    assert HTML.encode() in parquet, "the text is there, bounded and readable"
