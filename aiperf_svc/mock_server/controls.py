"""The endpoints that are not inference: health, models, a delay of first tokens, and the account
(`/truth`) of all processes."""

import json

from aiperf_svc.mock_server.accounts import Account
from aiperf_svc.mock_server.connections import Connection
from aiperf_svc.mock_server.metrics_page import render
from aiperf_svc.mock_server.replies import Ending, Reply
from aiperf_svc.mock_server.reply_cache import ReplyCache, Route
from aiperf_svc.mock_server.sender import Sender
from aiperf_svc.mock_server.shared_counters import Question, SharedCounters

_WAITING = Reply(status=200, writes=[], early=0, delay_tokens=0, ending=Ending.HANG)
"""Placeholder for the reply of a connection that waits for all processes to report."""


class Controls:
    """Responds to the control requests of one process. Requests for the account of all processes
    wait for the other processes."""

    def __init__(
        self,
        shared: SharedCounters,
        account: Account,
        *,
        replies: ReplyCache,
        sender: Sender,
        model: str,
        has_details: bool,
    ) -> None:
        self._model = model
        self._has_details = has_details
        self._shared = shared
        self._account = account
        self._replies = replies
        self._sender = sender
        self._asks: list[tuple[Connection, Route, Question]] = []

    def reply(self, connection: Connection, route: Route, *, is_starting: bool) -> None:
        """Respond to a control request, at once or when all processes have reported."""
        if route.refusal is not None:
            self._sender.begin_uncounted(connection, route.refusal)
        elif route.control in ("truth", "reset", "metrics"):
            connection.reply, connection.is_counted = _WAITING, False
            self._asks.append((connection, route, _question(route)))
            self._ask_next()
        elif route.control == "delay":
            self._sender.begin_uncounted(connection, self._delay(route))
        elif is_starting:
            self._sender.begin_uncounted(connection, self._replies.unready(route.head))
        else:
            self._sender.begin_uncounted(connection, self._replies.control(route))

    def _delay(self, route: Route) -> Reply:
        """Delay first tokens as the query requests, if the server sends them with a timer."""
        if self._sender.is_instant:
            text = "a mock server without --ttft and --itl responds at once and delays nothing"
            return self._replies.error(route.head, 409, text)
        query = {name: value for name, _, value in
                 (part.partition("=") for part in route.head.query.split("&"))}  # fmt: skip
        numbers = [query.get(name, "") for name in ("latency_ns", "for_ns")]
        if not all(value.isdecimal() and len(value) < 19 for value in numbers):
            return self._replies.error(route.head, 400, "expected ?latency_ns=N&for_ns=N")
        self._shared.set_delay(*map(int, numbers))
        return self._replies.json(route, b'{"status":"ok","processes":[]}')

    def on_wakeup(self) -> None:
        """Handle a wake-up: a question, a response, or the release of the lock."""
        self._shared.publish(self._account, self._sender.waiting)
        merged = self._shared.collect()
        if merged is not None:
            connection, route, _ = self._asks.pop(0)
            if connection.fd >= 0:
                self._sender.begin_uncounted(connection, self._response(route, merged))
        self._ask_next()

    def _response(self, route: Route, merged: bytes) -> Reply:
        if route.control != "metrics":
            return self._replies.json(route, merged)
        counters = json.loads(merged)
        waiting, *values = counters["values"]
        # The fastest path only counts responses.
        known = values if self._has_details else None
        started_s = self._shared.started_s
        page = render(counters, waiting, known, model=self._model, started_s=started_s)
        return self._replies.page(route, page)

    def _ask_next(self) -> None:
        if self._asks:
            self._shared.ask(self._asks[0][2])


def _question(route: Route) -> Question:
    if route.control == "reset":
        return Question.RESET
    if route.control == "metrics":
        return Question.METRICS
    return Question.ROWS if "rows=1" in route.head.query.split("&") else Question.COUNTERS
