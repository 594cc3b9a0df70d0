"""Asks whether the target has loaded its model: `/health`, else `/v1/models`, else one request.

A server that lacks one of these paths is asked the next. These requests are no part of the run.
"""

from typing import Final
from urllib.parse import urlsplit

from aiperf_svc.adapters.inference.plain_http import exchange
from aiperf_svc.adapters.inference.resolved_target import Target
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.endpoints.base import Prompt, error_message
from aiperf_svc.core.endpoints.paths import base_path
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.responses.http1 import ProtocolViolation
from aiperf_svc.domain.foreign_text import one_line

PAGE_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 60.0
"""The first request to a model may compile a part of it."""
_PROMPT: Final = Prompt(texts=("Hi",), passages=("Hi",), output_tokens=1)


def why_not_ready(config: BenchmarkConfig, target: Target, run_id: str) -> str:
    """Return why the target cannot be measured yet; empty if it can. Blocks."""
    url = config.endpoint.url
    try:
        base = base_path(urlsplit(url).path, config.endpoint, endpoint_of(config.endpoint))
        for path in ("/health", "/v1/models"):
            request = _get(target, base.removesuffix("/v1") + path, run_id)
            status, body = exchange(target, request, timeout_s=PAGE_TIMEOUT_S)
            if status < 400:
                return ""
            if status >= 500:
                return one_line(f"{path}: status {status}: {error_message(body)}")
        options = config.endpoint.model_copy(update={"streaming": False})
        try:
            rendered = endpoint_of(options).render(_PROMPT, options)
        except ValueError:
            # Only the dataset knows what a request holds; the server responds, which has to do.
            return ""
        before, after = target.request(rendered.whole)
        request = before + f"{run_id}-ready".encode() + after
        status, body = exchange(target, request, timeout_s=REQUEST_TIMEOUT_S)
    except OSError as error:
        return one_line(f"{url}: {error.strerror or error}")
    except ProtocolViolation as error:
        return one_line(f"{url}: {error}")
    return "" if status < 400 else one_line(f"a request: status {status}: {error_message(body)}")


def _get(target: Target, path: str, run_id: str) -> bytes:
    _, _, headers = target.head.partition(b"\r\n")
    line = f"GET {target.way.origin}{path} HTTP/1.1\r\n".encode()
    return line + headers + f"X-Request-Id: {run_id}-ready\r\nContent-Length: 0\r\n\r\n".encode()
