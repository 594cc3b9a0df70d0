"""The path of a request, built from the path of the server's URL and that of the API.

Users paste different URLs: the address of the server, the base URL of an SDK, which ends in `/v1`,
or the complete URL of a request. A common part of the URL's end and the API's beginning is used
once. The complete URL of a service with another version or without one, such as
`/api/v3/chat/completions`, is used unchanged.
"""

import re
from urllib.parse import urlsplit

from aiperf_svc.config.endpoint import Endpoint as EndpointConfig
from aiperf_svc.core.endpoints.base import Endpoint
from aiperf_svc.core.endpoints.registry import ENDPOINTS


def request_path(url_path: str, options: EndpointConfig, api: Endpoint) -> str:
    """Return the path of each request to a URL with this path."""
    own = options.path or (options.streaming and api.stream_path) or api.path
    base, end = base_path(url_path, options, api), _without_version(api.path)
    if own == api.path and end and url_path.rstrip("/") == base + end:
        own = end
    return base + own or "/"


def request_url(options: EndpointConfig) -> str:
    """Return the complete URL of requests to an endpoint."""
    parts = urlsplit(options.url)
    path = request_path(parts.path, options, ENDPOINTS[options.type])
    return f"{parts.scheme}://{parts.netloc}{path}"


def base_path(url_path: str, options: EndpointConfig, api: Endpoint) -> str:
    """Return the part of a URL's path before the API's own, below which other pages are found."""
    base = url_path.rstrip("/")
    paths = [options.path] if options.path else [api.path, api.stream_path]
    common = max((_common(base, path.partition("?")[0]) for path in paths if path), default=0)
    if not common and not options.path and _is_whole(base, api):
        common = len(_without_version(api.path))
    return base[: len(base) - common]


def _without_version(path: str) -> str:
    return re.sub(r"^/v\d+(?=/)", "", path)


def _is_whole(url_path: str, api: Endpoint) -> bool:
    """Return whether a URL's path ends with the API's path, in any version."""
    end = _without_version(api.path)
    return bool(end) and url_path.rstrip("/").endswith(end)


def _common(base: str, path: str) -> int:
    """Return the length of the longest end of `base` that is a beginning of `path`, in complete
    segments."""
    starts = (at for at, sign in enumerate(f"{path}/") if sign == "/" and at)
    return max((at for at in starts if base.endswith(path[:at])), default=0)


def other_api(url_path: str, options: EndpointConfig) -> str:
    """Return the type of the API whose path ends a URL, if it differs from that of the options;
    empty otherwise."""
    path = url_path.rstrip("/")
    if options.path or options.type not in ENDPOINTS or path.endswith(ENDPOINTS[options.type].path):
        return ""
    if not _is_whole(path, ENDPOINTS[options.type]):
        return next((kind for kind, api in ENDPOINTS.items() if path.endswith(api.path)), "")
    # A path of the chat API also ends with that of completions.
    own = len(_without_version(ENDPOINTS[options.type].path))
    whole = (kind for kind, api in ENDPOINTS.items() if _is_whole(path, api))
    return next((kind for kind in whole if len(_without_version(ENDPOINTS[kind].path)) > own), "")
