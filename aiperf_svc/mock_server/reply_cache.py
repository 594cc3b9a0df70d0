"""Maps the bytes of a request to its reply, without parsing a request that has been seen before.

Heads are cached by their bytes, replies by the bytes of the body: the key is exact, so a hit is as
correct as parsing again. Requests that differ only in their prompt have equal parameters and share
one reply, so the cache consists mostly of keys.
"""

import random
import time
from typing import Any

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.delays import parse_delay
from aiperf_svc.mock_server.faults import FAULTS, find_fault
from aiperf_svc.mock_server.histories import CHECKED, Histories, decoded, may_call, turn_of
from aiperf_svc.mock_server.replies import (
    Draft,
    Drafts,
    Ending,
    Reply,
    assemble,
    draft_error,
    response_of,
)
from aiperf_svc.mock_server.requests import (
    CHAT,
    INFERENCE,
    BadRequest,
    Head,
    PrefixCache,
    RequestParams,
    parse_head,
    parse_params,
)
from aiperf_svc.mock_server.typed_events import compact

_MAX_HEADS = 4096
_MAX_CACHED_BODY = 64 * 1024
_CACHE_BYTES = 8 * 1024 * 1024
"""Size of the cache per process: sixty processes with a million different bodies each use less than
half a GiB."""
_REPLY_COST = 200
"""Bytes of a cached reply in addition to its body."""

_CONTROLS = {
    ("GET", "/health"): "health",
    ("GET", "/healthz"): "health",
    ("GET", "/v1/models"): "models",
    ("GET", "/truth"): "truth",
    ("POST", "/truth/reset"): "reset",
    ("POST", "/truth/delay"): "delay",
    ("GET", "/metrics"): "metrics",
}


class Route:
    """Route of requests with one head: to a control endpoint (`control` is its name) or an
    inference endpoint (`replies` holds its replies by body). A `refusal` is the only response."""

    __slots__ = ("control", "head", "is_inference", "length", "refusal", "replies")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.length = head.length
        self.control = _CONTROLS.get((head.method, head.path), "")
        self.is_inference = head.method == "POST" and head.path in INFERENCE
        self.replies: dict[bytes, Reply] = {}
        self.refusal: Reply | None = None


class ReplyCache:
    """Replies of one process for its config."""

    def __init__(self, config: MockServerConfig, *, rng: random.Random) -> None:
        self.routes: dict[bytes, Route] = {}
        self.quick: dict[bytes, Reply] = {}
        """Complete requests, without their ids, whose response is one send of a plain reply."""
        self._quick_bytes = 0
        self._config = config
        self._random = rng.random
        block = config.prefix_cache_block
        self._cache = PrefixCache(block) if block else None
        self._drafts = Drafts(
            created_s=int(time.time()),
            role_chunk=config.role_chunk,
            embedding_dimensions=config.embedding_dimensions,
        )
        # With slots, the head is sent with the first token instead of in a planned write of its
        # own.
        self._early_head = parse_delay(config.ttft).fixed_ns != 0 and not config.slots
        self._has_turns = config.check_history or config.tool_calls > 0 or config.refusals
        self._histories = Histories() if config.check_history else None
        self._by_body: dict[tuple[str, bool, str], dict[bytes, Reply]] = {}
        self._by_params: dict[tuple[RequestParams, bool, str], Reply] = {}
        self._cached_bytes = 0
        self._fault_shares = (
            (config.error_rate, f"error-{config.error_status}"),
            (config.hang_rate, "hang"),
            (config.cut_rate, "cut"),
            (config.malformed_rate, "malformed"),
        )
        self.has_fault_rates = any(share for share, _ in self._fault_shares)

    def route(self, head_bytes: bytes) -> Route:
        """Return the route of an unknown head. Raises BadRequest for invalid HTTP."""
        head = parse_head(head_bytes)
        route = Route(head)
        if route.is_inference:
            key = (head.path, head.is_last, head.fault)
            route.replies = self._by_body.setdefault(key, {})
        refused = self._refused(route)
        if refused is not None:
            route.refusal = self.error(head, refused.status, refused.message)
        if len(self.routes) >= _MAX_HEADS:
            self.routes.clear()
        self.routes[head_bytes] = route
        return route

    def _refused(self, route: Route) -> BadRequest | None:
        head = route.head
        wanted = f"Bearer {self._config.api_key}"
        is_open = not self._config.api_key or head.path in ("/health", "/healthz")
        if not is_open and head.authorization != wanted:
            return BadRequest(401, "the API key is missing or wrong")
        if route.is_inference:
            if head.fault and find_fault(head.fault) is None:
                known = ", ".join(FAULTS)
                return BadRequest(
                    400, f"X-Mock-Fault is {head.fault!r}; expected error-STATUS or one of {known}"
                )
        elif head.path in INFERENCE or any(path == head.path for _, path in _CONTROLS):
            if not route.control:
                return BadRequest(405, f"{head.method} is not allowed at {head.path}")
        else:
            return BadRequest(404, f"there is nothing at {head.path}")
        return None

    def reply(self, route: Route, body: bytes) -> Reply:
        """Return the reply to an inference request whose body is not in the route."""
        try:
            params = parse_params(route.head.path, body, self._config, self._cache)
            if self._has_turns and params.path in CHECKED:
                params = self._with_turn(route.head.session, params, decoded(body))
        except BadRequest as bad:
            return self.error(route.head, bad.status, bad.message)
        fault = route.head.fault
        if (
            not fault
            and params.model.startswith("mock-")
            and find_fault(params.model[5:]) is not None
        ):
            fault = params.model[5:]
        reply = self._reply_to_params(params, is_last=route.head.is_last, fault=fault)
        is_same_again = self._cache is None and self._histories is None
        if len(body) <= _MAX_CACHED_BODY and is_same_again:
            self._cached_bytes += len(body) + _REPLY_COST
            if self._cached_bytes > _CACHE_BYTES:
                for replies in self._by_body.values():
                    replies.clear()
                self._cached_bytes = len(body) + _REPLY_COST
            route.replies[body] = reply
        return reply

    def _with_turn(
        self, session: str, params: RequestParams, data: dict[str, Any]
    ) -> RequestParams:
        """Return the parameters with those that depend on the history. Raises BadRequest if the
        history is wrong."""
        path, histories = params.path, self._histories
        if histories is not None and (problem := histories.problem(session, path, data)):
            raise BadRequest(400, problem)
        calls = self._config.tool_calls if may_call(path, data) else 0
        refuses = self._config.refusals and path == CHAT
        params = params._replace(turn=turn_of(path, data), tool_calls=calls, refuses=refuses)
        if histories is not None and session:
            histories.add(session, response_of(params))
        return params

    def add_quick(self, route: Route, request: bytes, body: bytes) -> None:
        """Add a request to `quick` if its reply is known and consists of one send."""
        reply = route.replies.get(body)
        if reply is None or reply.whole is None or not reply.is_plain:
            return
        self._quick_bytes += len(request) + _REPLY_COST
        if self._quick_bytes > _CACHE_BYTES:
            self.quick.clear()
            self._quick_bytes = len(request) + _REPLY_COST
        self.quick[request] = reply

    def draw_fault(self) -> str:
        """Return the fault of the next request, drawn by share; usually none (empty)."""
        drawn = self._random()
        for share, fault in self._fault_shares:
            drawn -= share
            if drawn < 0:
                return fault
        return ""

    def faulty_reply(self, route: Route, body: bytes, fault: str) -> Reply:
        """Return the reply to a request with this fault."""
        try:
            params = parse_params(route.head.path, body, self._config, self._cache)
        except BadRequest as bad:
            return self.error(route.head, bad.status, bad.message)
        return self._reply_to_params(params, is_last=route.head.is_last, fault=fault)

    def _reply_to_params(self, params: RequestParams, *, is_last: bool, fault: str) -> Reply:
        key = (params, is_last, fault)
        reply = self._by_params.get(key)
        if reply is not None:
            return reply
        draft = self._drafts.draft(params)
        apply_fault = find_fault(fault) if fault else None
        if apply_fault is not None:
            draft = apply_fault(draft)
        early_head = self._early_head or draft.ending is Ending.REPEAT
        reply = assemble(draft, close=is_last, early_head=early_head)
        if draft.status == 200:
            reply.prompt_tokens, reply.tokens = params.prompt_tokens, params.tokens
            reply.cached_tokens = params.cached_tokens
        if len(self._by_params) >= _MAX_HEADS:
            self._by_params.clear()
        self._by_params[key] = reply
        return reply

    def error(self, head: Head | None, status: int, message: str) -> Reply:
        """Return an error reply. Without a parsed head, the connection is closed."""
        path = CHAT if head is None else head.path
        draft = draft_error(status, message, kind="invalid_request_error", path=path)
        return assemble(draft, close=head is None or head.is_last, early_head=False)

    def control(self, route: Route) -> Reply:
        """Return the response to GET /v1/models, /health or /healthz."""
        if route.control == "models":
            return assemble(
                self._drafts.models(self._config.model), close=route.head.is_last, early_head=False
            )
        return self.json(route, compact({"status": "ok"}))

    def json(self, route: Route, body: bytes) -> Reply:
        return assemble(Draft(body=body), close=route.head.is_last, early_head=False)

    def page(self, route: Route, text: str) -> Reply:
        """Return a response with this metrics page."""
        draft = Draft(body=text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")
        return assemble(draft, close=route.head.is_last, early_head=False)

    def unready(self, head: Head) -> Reply:
        """Return the response to every request during a slow start."""
        return self.error(head, 503, "the server is starting")
