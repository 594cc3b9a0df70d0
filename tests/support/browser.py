"""A headless browser that opens pages and reports what they contain."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
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
TIMEOUT_S = 60.0
"""Time limit for loading a page and for starting the browser."""


def browser() -> str:
    """Return the path of a browser. Skips the test if none is installed."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}")
    return found


class Frame(NamedTuple):
    """A page that is loaded in a frame with the width of a browser window."""

    page: str
    width: int


def opened(folder: Path, frames: Mapping[str, Frame], *flags: str) -> dict[str, Any]:
    """Open these pages in one browser and return what it finds in each. Fails on page errors."""
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


class Tab:
    """A page that is loaded from its server and clicked through the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._session, self._last = socket, "", 0
        self._events: list[str] = []
        self.errors: list[str] = []
        """Errors that scripts and the content security policy reported."""

    async def start(self) -> None:
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", **target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self._call(f"{domain}.enable")

    async def load(self, url: str) -> None:
        """Open an address and wait until the page is loaded."""
        self._events.clear()
        await self._call("Page.navigate", url=url)
        await self._loaded()

    async def click(self, script: str) -> None:
        """Run a script that leads to another page and wait until that page is loaded."""
        self._events.clear()
        await self.value(script)
        await self._loaded()

    async def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = await self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def _loaded(self) -> None:
        while "Page.loadEventFired" not in self._events:
            await self._read()

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        wanted = {"id": self._last, "method": method, "params": params}
        await self._socket.send_json(
            wanted | ({"sessionId": self._session} if self._session else {})
        )
        while (answer := await self._read()).get("id") != self._last:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def _read(self) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_S):
            found: dict[str, Any] = await self._socket.receive_json()
        method = found.get("method", "")
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(found["params"]["exceptionDetails"]["text"])
        if method == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.errors.append(found["params"]["entry"]["text"])
        return found


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Tab]:
    """Start a browser and yield its tab."""
    command = (browser(), *QUIET, "--remote-debugging-port=0", f"--user-data-dir={folder}")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            address = ""
            while not address:
                line = (await process.stderr.readline()).decode()
                assert line, "the browser exited"
                _, _, address = line.partition("DevTools listening on ")
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address.strip(), max_msg_size=0) as socket,
        ):
            tab = Tab(socket)
            await tab.start()
            yield tab
    finally:
        process.kill()
        # The parent process is the only reader of this pipe.
        await process.communicate()
        shutil.rmtree(folder, ignore_errors=True)
