"""The path of a request, from the path of the server's URL and that of the API.

Users paste what they have: the address of the server, the base URL of an SDK, which ends in `/v1`,
or the whole URL of a request. What the URL's end and the API's beginning have in common is in the
path once. The whole URL of a service with another version, or with none, such as
`/api/v3/chat/completions`, is that of its requests.
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
    """Return the whole URL of the requests that an endpoint names."""
    parts = urlsplit(options.url)
    path = request_path(parts.path, options, ENDPOINTS[options.type])
    return f"{parts.scheme}://{parts.netloc}{path}"


def base_path(url_path: str, options: EndpointConfig, api: Endpoint) -> str:
    """Return the part of a URL's path that is before the API's own, where other pages are too."""
    base = url_path.rstrip("/")
    paths = [options.path] if options.path else [api.path, api.stream_path]
    common = max((_common(base, path.partition("?")[0]) for path in paths if path), default=0)
    if not common and not options.path and _is_whole(base, api):
        common = len(_without_version(api.path))
    return base[: len(base) - common]


def _without_version(path: str) -> str:
    return re.sub(r"^/v\d+(?=/)", "", path)


def _is_whole(url_path: str, api: Endpoint) -> bool:
    """Return whether a URL's path ends with that of the API, whatever its version is."""
    end = _without_version(api.path)
    return bool(end) and url_path.rstrip("/").endswith(end)


def _common(base: str, path: str) -> int:
    """Return the length of the longest end of `base` with which `path` begins, in whole
    segments."""
    starts = (at for at, sign in enumerate(f"{path}/") if sign == "/" and at)
    return max((at for at in starts if base.endswith(path[:at])), default=0)


def other_api(url_path: str, options: EndpointConfig) -> str:
    """Return the type of the API with whose path a URL ends, if that is another one than the
    options name; empty if none is."""
    path = url_path.rstrip("/")
    if options.path or options.type not in ENDPOINTS or path.endswith(ENDPOINTS[options.type].path):
        return ""
    if not _is_whole(path, ENDPOINTS[options.type]):
        return next((kind for kind, api in ENDPOINTS.items() if path.endswith(api.path)), "")
    # A path of the chat API ends with that of completions too.
    own = len(_without_version(ENDPOINTS[options.type].path))
    whole = (kind for kind, api in ENDPOINTS.items() if _is_whole(path, api))
    return next((kind for kind in whole if len(_without_version(ENDPOINTS[kind].path)) > own), "")
