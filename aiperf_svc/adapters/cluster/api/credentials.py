"""The credentials for a cluster, read from the kubeconfig.

kr8s reads the kubeconfig and runs its credential plugins. It writes keys to files and does not
remove them, so they are removed here as soon as the TLS context has read them.
"""

import asyncio
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

USUAL_KUBECONFIG = "~/.kube/config"
_INLINE = (
    ("client-key-data", "client_key_file"),
    ("client-certificate-data", "client_cert_file"),
    ("certificate-authority-data", "server_ca_file"),
)
"""Keys of a kubeconfig that hold the content of a file, and the attributes in which kr8s stores the
path of its copy."""


class Credentials:
    """Address, token and certificates of one context. Call `load` first."""

    server: str
    """URL of the API server."""
    context: str
    headers: dict[str, str]
    tls: ssl.SSLContext | bool
    server_name: str | None
    """Name to verify the server's certificate against, if it differs from the URL's host."""
    proxy: str | None

    def __init__(self, *, kubeconfig: str | None, context: str | None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._lock = asyncio.Lock()
        self.loads = 0
        """Number of times the credentials were read."""

    async def load(self) -> None:
        """Read the kubeconfig. Raises EnvironmentProblem with one line."""
        _check_file(self._kubeconfig)
        try:
            from kr8s.asyncio import Api
        except ImportError as error:
            raise EnvironmentProblem(
                "working with a cluster needs more packages: pip install 'aiperf-svc[stack]'"
            ) from error
        # kr8s' own factory returns the same object, with the same credential files, to all callers.
        self._api = Api(bypass_factory=True, kubeconfig=self._kubeconfig, context=self._context)
        await self._read()

    async def reload(self, loads: int) -> None:
        """Read the kubeconfig again after a token has expired, unless it was read since `loads`."""
        async with self._lock:
            if loads == self.loads:
                _check_file(self._kubeconfig)
                await self._read()

    @property
    def namespace(self) -> str:
        return str(self._api.namespace)

    @property
    def file(self) -> str:
        return self._kubeconfig or os.environ.get("KUBECONFIG") or USUAL_KUBECONFIG

    async def _read(self) -> None:
        auth: Any = self._api.auth
        try:
            await auth.reauthenticate()
            self.tls = await auth.ssl_context()
        except Exception as error:  # Plugins and malformed files fail in every possible way.
            raise self._problem(error) from error
        finally:
            for path in _copies(auth):
                path.unlink(missing_ok=True)
        self.server = str(auth.server).rstrip("/")
        self.context = auth.active_context
        # Renew expired credentials for this context, even if another context is current by then.
        # kr8s has no public attribute for it.
        auth._use_context = self.context or None
        if not _is_url(self.server):
            raise EnvironmentProblem(
                f"context {self.context!r} of kubeconfig {self.file} has the server "
                f"{self.server!r}; expected https://HOST:PORT"
            )
        self.headers = {"Authorization": f"Bearer {auth.token}"} if auth.token else {}
        self.server_name, self.proxy = auth.tls_server_name, auth.proxy
        self.loads += 1

    def _problem(self, error: Exception) -> EnvironmentProblem:
        where = self.file
        kubeconfig = getattr(self._api.auth, "kubeconfig", None)
        known = [str(each["name"]) for each in kubeconfig.contexts or ()] if kubeconfig else []
        if self._context and self._context not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            return EnvironmentProblem(f"context {self._context!r} is not in {where}; {has}")
        reason = one_line(str(error)) or type(error).__name__
        return EnvironmentProblem(f"kubeconfig {where} cannot be used: {reason}")


def _check_file(kubeconfig: str | None) -> None:
    """Raise if no kubeconfig exists. Without a kubeconfig, kr8s would use the account of a pod."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    paths = [Path(part).expanduser() for part in (named or USUAL_KUBECONFIG).split(":") if part]
    if any(path.is_file() for path in paths):
        return
    if not named and "KUBERNETES_SERVICE_HOST" in os.environ:
        return
    raise EnvironmentProblem(
        f"no kubeconfig at {named or USUAL_KUBECONFIG}; name one with --kubeconfig or KUBECONFIG"
    )


def _is_url(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # port out of range
        return False


def _copies(auth: Any) -> Iterator[Path]:
    """Yield the files into which kr8s copied inline content of the kubeconfig or of a plugin."""
    # kr8s has no public attribute for the files that are copies.
    settings = {**getattr(auth, "_user", {}), **getattr(auth, "_cluster", {})}
    for key, attribute in _INLINE:
        name = getattr(auth, attribute)
        if key in settings and name:
            yield Path(name)
