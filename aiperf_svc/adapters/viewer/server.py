"""Serves the viewer's pages (the list of results, and views of selected runs) to a browser on this
machine.

Every address starts with a random token, so neither other users of the machine nor pages of other
sites can read anything. The viewer writes nothing, and its pages cannot load external resources.
"""

import asyncio
import hmac
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from aiohttp import web

from aiperf_svc.adapters.comparison import history_views, page
from aiperf_svc.adapters.comparison.comparing import compare_folders, curves_of
from aiperf_svc.adapters.comparison.run_folders import read_runs
from aiperf_svc.adapters.report.blocks import (
    Box,
    Cell,
    Header,
    Plots,
    Row,
    document,
    environment,
    table,
)
from aiperf_svc.adapters.report.curve_chart import curve_plot
from aiperf_svc.adapters.viewer.index import DEPTH, Entry, Index, choices
from aiperf_svc.core.compare.comparison import TOLERANCE
from aiperf_svc.core.compare.history import history
from aiperf_svc.domain.errors import AiperfError, ConfigError, EnvironmentProblem
from aiperf_svc.domain.number_text import number

REPORT = "report.html"
_ENVIRONMENT = environment("aiperf_svc.adapters.viewer")
# File names may contain any bytes.
_quoted = partial(quote, errors="surrogateescape")
_ENVIRONMENT.filters["path"] = _quoted
_LIST = _ENVIRONMENT.get_template("list.html")


def list_page(root: Path, entries: Sequence[Entry]) -> bytes:
    """Render the list of all results."""
    filters = [
        (name, label, choices(entries, name))
        for name, label in (("kind", "Kind"), ("model", "Model"), ("verdict", "Verdict"))
    ]
    return _LIST.render(
        root=str(root),
        depth=DEPTH,
        entries=entries,
        filters=filters,
        most=MAX_HISTORY_RUNS,
        when=lambda entry: history_views.when(entry.when_wall_ns) if entry.when_wall_ns else "",
        has_report=lambda entry: (root / entry.id / REPORT).is_file(),
    ).encode(errors="replace")


def compare_page(folders: Sequence[Path]) -> bytes:
    """Compare two folders; the first is the base. Raises ConfigError and Incomparable."""
    found, groups = compare_folders(folders, with_curves=True)
    return page.render(found, groups, curves_of(folders))


def curves_page(folders: Sequence[Path]) -> bytes:
    """Plot the curves of experiments, with the Pareto front of all. Raises ConfigError."""
    plot = curve_plot(curves_of(folders))
    if plot is None:
        raise ConfigError(
            "no curve: an experiment needs trials of several loads, whose servers stream tokens"
        )
    names = ", ".join(folder.name for folder in folders)
    return document("Curves", [Header("Throughput against speed", [names]), Plots([plot], "")])


def history_page(folders: Sequence[Path]) -> bytes:
    """Show the default metric of runs over time. Raises ConfigError and Incomparable."""
    return history_views.render_page(history(read_runs(folders), "", tolerance=TOLERANCE))


def files_page(title: str, folder: Path) -> bytes:
    """List the files of a folder."""
    found = sorted(folder.iterdir(), key=lambda each: (each.is_dir(), each.name))
    rows = [
        Row(
            [
                Cell(
                    each.name,
                    is_head=True,
                    link=_quoted(each.name) + ("/" if each.is_dir() else ""),
                ),
                Cell("" if each.is_dir() else number(each.stat().st_size)),
            ]
        )
        for each in found
        if not each.is_symlink()
    ]
    return document(title, [Header(title, []), table(("File", "Bytes"), rows)])


def error_page(text: str) -> bytes:
    """Render a page with the reason of an error."""
    return document("Error", [Header("Not possible", []), Box("invalid", text)])


HOST = "127.0.0.1"
MAX_HISTORY_RUNS = 200
"""Maximum number of runs in a history."""
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
"""Policy for files: a page among them may be foreign, and must not act as the viewer."""
_TYPES = {".html": "text/html", ".json": "application/json", ".parquet": "application/octet-stream"}
"""Content types of files; all others are plain text."""


class Viewer:
    def __init__(self, root: Path, token: str) -> None:
        self._index, self._token = Index(root), token

    async def serve(self, port: int, ready: Callable[[str], None]) -> None:
        """Serve until cancelled. When the page is available, call `ready` with its address in a
        thread, because a browser that it starts waits for the page. Port 0 uses a free port. Raises
        EnvironmentProblem."""
        app = web.Application(middlewares=[self._guarded])
        add = app.router.add_get
        add("/{token}/", self._list)
        add("/{token}/compare", partial(self._chosen, compare_page))
        add("/{token}/curves", partial(self._chosen, curves_page))
        add("/{token}/history", partial(self._chosen, history_page))
        add("/{token}/files/{path:.*}", self._file)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
            address = f"http://{HOST}:{runner.addresses[0][1]}/{self._token}/"
            await asyncio.to_thread(ready, address)
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
        received = request.path.split("/")[1].encode()
        if not hmac.compare_digest(received, self._token.encode()):
            return web.Response(status=403, text="open the address that aiperf-svc view printed\n")
        try:
            response = await handler(request)  # type: ignore[misc]
        except AiperfError as error:
            response = web.Response(
                body=error_page(str(error)), content_type="text/html", status=400
            )
        except OSError as error:
            text = error.strerror or "no such run or file; it may have been removed"
            response = web.Response(body=error_page(text), content_type="text/html", status=404)
        assert isinstance(response, web.StreamResponse)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _list(self, _request: web.Request) -> web.Response:
        entries = await asyncio.to_thread(self._index.scan)
        return await _page(list_page, self._index.root, entries)

    async def _chosen(
        self, render: Callable[[Sequence[Path]], bytes], request: web.Request
    ) -> web.Response:
        """Render the folders of a request, oldest first: the list has the newest first. Raises
        FileNotFoundError."""
        chosen = request.query.getall("run", [])[:MAX_HISTORY_RUNS]
        return await _page(render, [self._index.folder(each) for each in chosen][::-1])

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = unquote(request.rel_url.raw_path, errors="surrogateescape").partition("/files/")[2]
        path = (self._index.root / name).resolve()
        if not path.is_relative_to(self._index.root) or not path.exists():
            raise FileNotFoundError(path)
        if path.is_dir():
            if not request.path.endswith("/"):
                raise FileNotFoundError(path)
            title = str(path.relative_to(self._index.root))
            return await _page(files_page, title, path)
        headers = {"Content-Security-Policy": _SANDBOX}
        headers["Content-Type"] = _TYPES.get(path.suffix, "text/plain; charset=utf-8")
        return web.FileResponse(path, headers=headers)


async def _page(render: Callable[..., bytes], *arguments: object) -> web.Response:
    body = await asyncio.to_thread(render, *arguments)
    return web.Response(body=body, content_type="text/html", charset="utf-8")
