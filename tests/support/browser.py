"""A real browser without a window, which opens pages and reports what it finds in them."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)
TELL = """<script>
const tell = found => {
  const note = parent.document.createElement("pre");
  note.className = "measured";
  note.textContent = JSON.stringify({name: frameElement.id, ...found});
  parent.document.body.append(note);
};
</script>"""
HEIGHT = 2000


def browser() -> str:
    """The path of a browser; the test says so when there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}")
    return found


class Frame(NamedTuple):
    """A page in a frame of the browser's window, as wide as a window would be."""

    page: str
    width: int


def opened(folder: Path, frames: Mapping[str, Frame], *flags: str) -> dict[str, Any]:
    """What a browser finds in each of these pages, which it opens without errors; one start."""
    path, profile = folder / "frames.html", folder / "profile"
    boxes = [
        f'<iframe id="{name}" srcdoc="{escape(frame.page + TELL)}" style="position: absolute;'
        f' top: 0; left: 0; border: 0; width: {frame.width}px; height: {HEIGHT}px"></iframe>'
        for name, frame in frames.items()
    ]
    path.write_text("<!doctype html><body>" + "".join(boxes))
    size = f"--window-size={max(frame.width for frame in frames.values())},{HEIGHT}"
    command = [browser(), *QUIET, f"--user-data-dir={profile}", size, "--enable-logging=stderr"]
    try:
        done = subprocess.run(
            [*command, "--dump-dom", *flags, path.as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(profile, ignore_errors=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    notes = re.findall(r'<pre class="measured">(.*?)</pre>', done.stdout)
    found = [json.loads(unescape(note)) for note in notes]
    return {each.pop("name"): each for each in found}
