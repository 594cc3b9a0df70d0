"""The options of an endpoint, and the body of a request to it."""

import json
from typing import Any

from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import Endpoint, Prompt


def endpoint_options(**changes: object) -> Options:
    """Return the options of an endpoint, chat unless `type` names another."""
    return Options.model_validate({"url": "http://localhost:1", "model": "m", **changes})


def request_body(endpoint: Endpoint, prompt: Prompt, **changes: object) -> dict[str, Any]:
    """Return the decoded body that the endpoint renders of a prompt."""
    options = endpoint_options(type=endpoint.type, **changes)
    body: dict[str, Any] = json.loads(endpoint.render(prompt, options).whole)
    return body
