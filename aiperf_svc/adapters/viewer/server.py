"""Serves the viewer's pages to a browser on this machine.

Every address begins with a random token, so that neither other users of the machine nor pages of
other sites can read anything. Nothing is written, and pages can load nothing from elsewhere.
"""

import asyncio
import hmac
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from aiperf_svc.adapters.viewer import pages
from aiperf_svc.adapters.viewer.index import Index
from aiperf_svc.domain.errors import AiperfError, EnvironmentProblem

HOST = "127.0.0.1"
MOST = 200
"""Most runs of a history."""
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_SANDBOX = f"{_POLICY}; sandbox allow-scripts allow-downloads"
"""Of files: a page among them may come from elsewhere, and must not act as the viewer."""
_TYPES = {".html": "text/html", ".json": "application/json", ".parquet": "application/octet-stream"}
"""Types of files; all others are plain text."""


class Viewer:
    """The server of one folder."""

    def __init__(self, root: Path, token: str) -> None:
        self._index, self._token = Index(root), token

    async def serve(self, port: int, ready: Callable[[str], None]) -> None:
        """Serve until cancelled, and tell the address when it can be opened; port 0 takes a free
        one. Raises EnvironmentProblem."""
        app = web.Application(middlewares=[self._guarded])
        add = app.router.add_get
        add("/{token}/", self._list)
        add("/{token}/compare", self._compare)
        add("/{token}/curves", self._curves)
        add("/{token}/history", self._history)
        add("/{token}/files/{path:.*}", self._file)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
            ready(f"http://{HOST}:{runner.addresses[0][1]}/{self._token}/")
            await asyncio.Event().wait()
        except OSError as error:
            reason = error.strerror or str(error)
            raise EnvironmentProblem(f"cannot listen on {HOST}:{port}: {reason}") from error
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], object]
    ) -> web.StreamResponse:
        given = request.path.split("/")[1].encode()
        if not hmac.compare_digest(given, self._token.encode()):
            return web.Response(status=403, text="open the address that aiperf-svc view printed\n")
        try:
            response = await handler(request)  # type: ignore[misc]
        except AiperfError as error:
            response = web.Response(
                body=pages.error_page(str(error)), content_type="text/html", status=400
            )
        except FileNotFoundError:
            response = web.Response(
                body=pages.error_page("no such run or file; it may have been removed"),
                content_type="text/html",
                status=404,
            )
        assert isinstance(response, web.StreamResponse)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _list(self, _request: web.Request) -> web.Response:
        entries = await asyncio.to_thread(self._index.look)
        return await _page(pages.list_page, self._index.root, entries)

    async def _compare(self, request: web.Request) -> web.Response:
        return await _page(pages.compare_page, self._chosen(request))

    async def _curves(self, request: web.Request) -> web.Response:
        return await _page(pages.curves_page, self._chosen(request))

    async def _history(self, request: web.Request) -> web.Response:
        return await _page(pages.history_page, self._chosen(request))

    def _chosen(self, request: web.Request) -> Sequence[Path]:
        """Return the folders of a request, the oldest first: the list has the newest first. Raises
        FileNotFoundError."""
        return [self._index.folder(each) for each in request.query.getall("run", [])[:MOST]][::-1]

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = (self._index.root / request.match_info["path"]).resolve()
        if not path.is_relative_to(self._index.root) or not path.exists():
            raise FileNotFoundError(path)
        if path.is_dir():
            if not request.path.endswith("/"):
                raise FileNotFoundError(path)
            title = str(path.relative_to(self._index.root))
            return await _page(pages.files_page, title, path)
        headers = {"Content-Security-Policy": _SANDBOX}
        headers["Content-Type"] = _TYPES.get(path.suffix, "text/plain; charset=utf-8")
        return web.FileResponse(path, headers=headers)


async def _page(render: Callable[..., bytes], *arguments: object) -> web.Response:
    body = await asyncio.to_thread(render, *arguments)
    return web.Response(body=body, content_type="text/html", charset="utf-8")
