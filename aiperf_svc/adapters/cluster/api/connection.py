"""Connection of the runner to a cluster's API server.

kr8s reads the credentials, and aiohttp sends the requests
(docs/decisions/0012-kubernetes-clients.md). Every module of this package uses this connection.
"""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from aiperf_svc.adapters.cluster.api.credentials import Credentials
from aiperf_svc.adapters.connect_failure import connect_failure
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json

_T = TypeVar("_T")
CONNECT_S = 10.0
RESPONSE_S = 30.0
"""Timeout of one response; streams have none."""
CONNECTIONS = 32
"""Maximum number of simultaneous connections. Lists of all types are requested at once, and API
servers shed load."""
MESSAGE_LIMIT = 2_000
"""Maximum length of an API server's message, in characters."""
FOREIGN_LIMIT = 80
"""Maximum length of a response that does not come from an API server, in characters."""
ATTEMPTS = 4
MAX_WAIT_S = 5.0
"""Longest wait, in seconds, before repeating a request that was refused as overloaded (429)."""
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MANAGER = "aiperf-svc"
"""Field manager of server-side apply."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header for an object without its content: a Secret comes without its secrets."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for lists without the objects' contents: a list of Secrets brings no secrets."""


class Unreachable(EnvironmentProblem):
    """Raised when the API server does not respond, or expired credentials cannot be renewed."""

    is_temporary = True
    """Whether a retry may help. The API server may have carried out the request."""


class Refused(EnvironmentProblem):
    """Raised when the API server responds with an error."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status."""
        self.reason = reason
        """Kubernetes' name for the error: `NotFound`, `AlreadyExists`, `Forbidden`."""

    @property
    def is_temporary(self) -> bool:
        """Like `Unreachable.is_temporary`: whether the API server failed."""
        return self.status >= 500


class Cluster:
    """A cluster that responds, made by `connect`. Every method raises Refused and Unreachable."""

    identity: str
    """UID of the kube-system namespace, which is unique to a cluster; the server's address if that
    namespace cannot be read."""
    version: str
    """Version of the API server: `v1.34.4`."""

    def __init__(self, credentials: Credentials, session: aiohttp.ClientSession) -> None:
        self._credentials, self._session = credentials, session

    @property
    def server(self) -> str:
        return self._credentials.server

    @property
    def context(self) -> str:
        """Name of the kubeconfig's context in use."""
        return self._credentials.context

    @property
    def namespace(self) -> str:
        return self._credentials.namespace

    async def get(self, path: str, *, accept: str = JSON, **params: str) -> Json:
        return self._decoded(await self._call("GET", path, accept=accept, params=params), path)

    async def now(self) -> datetime:
        """Return the time by the API server's own clock, in whole seconds."""
        try:
            async with asyncio.timeout(RESPONSE_S), self.stream("GET", "/version") as response:
                stamp = response.headers.get("Date")
        except TimeoutError as error:
            raise self._unreachable(error) from error
        return parsedate_to_datetime(stamp) if stamp else datetime.now(UTC)

    async def post(self, path: str, body: Mapping[str, Any], **params: str) -> Json:
        """Create an object and return the server's version of it."""
        return self._decoded(await self._call("POST", path, body=body, params=params), path)

    async def patch(self, path: str, changes: Mapping[str, Any], **params: str) -> Json:
        """Merge changes into an object and return it. If they contain a `resourceVersion`, a change
        to an object that has changed since is refused (409)."""
        content = await self._call("PATCH", path, body=changes, kind=MERGE_PATCH, params=params)
        return self._decoded(content, path)

    async def apply(self, path: str, body: Mapping[str, Any], **params: str) -> bool:
        """Create an object as described, or update the existing one with server-side apply: fields
        that an earlier call set and this one omits are removed, fields of other managers stay.
        Return whether the object is new."""
        params = {"fieldManager": MANAGER, "force": "true", **params}
        status, _ = await self._respond("PATCH", path, body=body, kind=APPLY_PATCH, params=params)
        return status == HTTPStatus.CREATED

    async def delete(
        self, path: str, *, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Request the deletion of an object and its dependents. With `uid`, delete only the object
        with that UID. A missing object is not an error."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body["propagationPolicy"] = "Background"
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._call("DELETE", path, body=body)
        except Refused as error:
            # A conflict means that the precondition failed: the object with that UID is gone.
            if error.status != 404 and not (uid and error.status == 409):
                raise

    async def text(self, path: str, **params: str) -> str:
        """Return a plain-text response, such as a log."""
        return (await self._call("GET", path, accept="*/*", params=params)).decode(errors="replace")

    async def lines(self, path: str, **params: str) -> AsyncGenerator[Json, None]:
        """Yield the JSON lines of a watch until the server ends it."""
        async with self.stream("GET", path, params=params) as response:
            if response.status >= 400:
                raise _refused(response.status, await response.read(), path)
            try:
                # A line holds one object, and objects may be large.
                buffered = b""
                async for chunk in response.content.iter_any():
                    *whole, buffered = (buffered + chunk).split(b"\n")
                    for line in whole:
                        yield json.loads(line)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._unreachable(error) from error

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a response of any status for streaming."""
        loads = self._credentials.loads
        response = await self._request(method, path, params, headers, data)
        if response.status == 401:
            # Tokens of cloud providers are valid for minutes, and a run takes hours.
            response.close()
            try:
                await self._credentials.reload(loads)
            except EnvironmentProblem as error:
                raise Unreachable(str(error)) from error
            response = await self._request(method, path, params, headers, data)
        async with response:
            yield response

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        data: bytes | None,
    ) -> aiohttp.ClientResponse:
        who = self._credentials
        try:
            return await self._session.request(
                method,
                URL(who.server + path, encoded=True).extend_query(params or {}),
                headers={**(headers or {}), **who.headers},
                data=data,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                ssl=who.tls,
                server_hostname=who.server_name,
                proxy=who.proxy,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, *, protocols: tuple[str, ...], heartbeat_s: float
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket connection to a path with its query; messages may have any size."""
        who = self._credentials
        try:
            socket = await self._session.ws_connect(
                URL(who.server + path, encoded=True),
                protocols=protocols,
                heartbeat=heartbeat_s,
                headers=who.headers,
                ssl=who.tls,
                server_hostname=who.server_name,
                proxy=who.proxy,
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(
                f"{path.partition('?')[0]}: {error.status} {error.message}",
                status=error.status,
                reason="",
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        try:
            yield socket
        finally:
            await socket.close()

    async def _call(self, method: str, path: str, **request: Any) -> bytes:
        _, content = await self._respond(method, path, **request)
        return content

    async def _respond(
        self,
        method: str,
        path: str,
        *,
        accept: str = JSON,
        body: Mapping[str, Any] | None = None,
        kind: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        headers = {"Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = kind
            data = json.dumps(body).encode()
        for _ in range(ATTEMPTS):
            try:
                async with (
                    asyncio.timeout(RESPONSE_S),
                    self.stream(
                        method, path, params=params, headers=headers, data=data
                    ) as response,
                ):
                    content = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._unreachable(error) from error
            if response.status != 429:
                break
            # A 429 means that the server did nothing, so the request can be repeated.
            wait = response.headers.get("Retry-After", "1")
            await asyncio.sleep(min(float(wait) if wait.isdecimal() else 1.0, MAX_WAIT_S))
        if response.status >= 300:
            raise _refused(response.status, content, path)
        return response.status, content

    def _decoded(self, content: bytes, path: str) -> Json:
        try:
            decoded = json.loads(content)
        except ValueError:
            decoded = None
        if not isinstance(decoded, dict):
            text = one_line(content.decode(errors="replace"), limit=FOREIGN_LIMIT)
            raise Unreachable(
                f"{self.server}{path} is not Kubernetes' API: its response is {text!r}"
            )
        return decoded

    def _unreachable(self, error: BaseException) -> Unreachable:
        return Unreachable(f"the cluster at {self.server} does not respond: {_error_text(error)}")


def _error_text(error: BaseException) -> str:
    """Describe why there is no response, without aiohttp's terms."""
    match error:
        case TimeoutError():
            return "no response in time"
        case aiohttp.ClientConnectorCertificateError(
            certificate_error=ssl.SSLCertVerificationError(verify_message=why)
        ):
            return one_line(f"its certificate is not accepted: {why}")
        case aiohttp.ClientProxyConnectionError():
            return f"its proxy {error.host}:{error.port}: {connect_failure(error)}"
        case aiohttp.ClientConnectorError():
            return connect_failure(error)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return "it closed the connection before the end of its response"
        case aiohttp.ClientResponseError():
            return one_line(f"its response is not HTTP: {error.message}")
    return one_line(str(error)) or type(error).__name__


async def retried(call: Callable[[], Awaitable[_T]], *, within_s: float, pause_s: float) -> _T:
    """Repeat a call while the API server fails or does not respond, for at most `within_s`. Its
    storage elects a leader within seconds. Raises Refused, Unreachable."""
    end_mono_s = time.monotonic() + within_s
    while True:
        try:
            return await call()
        except (Refused, Unreachable) as error:
            if not error.is_temporary or time.monotonic() >= end_mono_s:
                raise
        await asyncio.sleep(pause_s)


@contextlib.asynccontextmanager
async def connect(
    *, kubeconfig: str | None = None, context: str | None = None
) -> AsyncIterator[Cluster]:
    """Connect to a cluster that responds and accepts the kubeconfig's credentials.

    `kubeconfig` is a path; None means KUBECONFIG or ~/.kube/config. `context` None means the
    current context. Raises EnvironmentProblem with one line if the file or context does not exist,
    the cluster does not respond, or it denies access.
    """
    credentials = Credentials(kubeconfig=kubeconfig, context=context)
    await credentials.load()
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
        cluster = Cluster(credentials, session)
        where = f"context {cluster.context!r} of kubeconfig {credentials.file}"
        try:
            cluster.version = await _version(cluster)
            cluster.identity = await _identity(cluster)
        except Unreachable as error:
            raise Unreachable(
                f"{error}; check that it runs and can be reached from here, and {where}"
            ) from error
        except Refused as error:
            if error.status not in (401, 403):
                raise EnvironmentProblem(
                    f"the server at {cluster.server} does not respond as Kubernetes' API does: "
                    f"{error}; check {where}"
                ) from error
            raise EnvironmentProblem(
                f"the cluster at {cluster.server} refuses context {cluster.context!r}: "
                f"{error}; renew its credentials"
            ) from error
        yield cluster


async def _version(cluster: Cluster) -> str:
    version = await cluster.get("/version")
    if "gitVersion" not in version:
        raise Unreachable(
            f"{cluster.server} is not Kubernetes' API: its /version has no gitVersion"
        )
    return str(version["gitVersion"])


async def _identity(cluster: Cluster) -> str:
    try:
        namespace = await cluster.get("/api/v1/namespaces/kube-system")
    except Refused as error:
        if error.status != 403:
            raise
        return cluster.server
    return str(namespace["metadata"]["uid"])


def _refused(status: int, content: bytes, path: str) -> Refused:
    reason, message = "", content.decode(errors="replace").strip()
    with contextlib.suppress(ValueError):
        status_object = json.loads(content)
        if isinstance(status_object, dict):
            reason = str(status_object.get("reason", ""))
            message = str(status_object.get("message", message))
    # The message may include an admission webhook's text, which has no length limit.
    message, reason = one_line(message, limit=MESSAGE_LIMIT), one_line(reason)
    return Refused(f"{message or path} ({status})", status=status, reason=reason)
