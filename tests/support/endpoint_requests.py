"""Endpoint options and request bodies."""

import json
from typing import Any

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import Endpoint, Prompt


def endpoint_options(**changes: object) -> Options:
    """Return endpoint options; the type is chat by default."""
    return Options.model_validate({"url": "http://localhost:1", "model": "m", **changes})


def request_body(endpoint: Endpoint, prompt: Prompt, **changes: object) -> dict[str, Any]:
    """Return the decoded body that the endpoint renders for a prompt."""
    options = endpoint_options(type=endpoint.type, **changes)
    body: dict[str, Any] = json.loads(endpoint.render(prompt, options).whole)
    return body
