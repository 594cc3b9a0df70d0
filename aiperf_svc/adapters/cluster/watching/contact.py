"""Reports when the API server stops responding, and when it responds again.

A request may wait half a minute for its response, and `pulumi` prints nothing while it waits. So a
small object is requested each second, and the user gets a message within seconds.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

from aiperf_svc.adapters.cluster.api.connection import JSON, METADATA, Cluster, Refused, Unreachable
from aiperf_svc.adapters.host.tasks import Tasks

POLL_S = 1.0
"""Seconds between requests. Each request reads an object from etcd, so an API server without its
storage counts as unresponsive."""
RESPONSE_S = 5.0
"""Timeout of a response; a slower API server counts as unresponsive."""
METADATA_OR_WHOLE = f"{METADATA},{JSON}"
PROBE = "/api/v1/namespaces/kube-system"

log = logging.getLogger(__name__)


class Contact:
    """Tracks when the API server last responded. Calls `note` once for each change."""

    def __init__(
        self,
        server: str,
        *,
        note: Callable[[str], None],
        consequence: str,
        response_s: float = RESPONSE_S,
    ) -> None:
        """`consequence` is the effect on the user while `server`, a URL, does not respond."""
        self._server, self._note, self._consequence = server, note, consequence
        self._response_s = response_s
        self._response_mono_s = time.monotonic()
        self._is_silent = False

    @property
    def silence(self) -> str:
        """Message while the API server does not respond, else empty."""
        if not self._is_silent:
            return ""
        return f"the API server at {self._server} has not responded for {self._silent_s:.0f} s"

    def handle_silence(self, error: Exception) -> None:
        """Record that a request got no response."""
        log.debug("no response of the API server: %s", error)
        if not self._is_silent and self._silent_s >= self._response_s:
            self._is_silent = True
            why = f" ({error})" if str(error) else ""
            self._note(f"{self.silence}{why}; {self._consequence}")

    def handle_response(self) -> None:
        """Record that a request got a response, of any content."""
        if self._is_silent:
            self._note(f"the API server responds again after {self._silent_s:.0f} s")
        self._response_mono_s, self._is_silent = time.monotonic(), False

    @property
    def _silent_s(self) -> float:
        return time.monotonic() - self._response_mono_s


@contextlib.asynccontextmanager
async def watched_contact(
    cluster: Cluster,
    *,
    note: Callable[[str], None],
    poll_s: float = POLL_S,
    response_s: float = RESPONSE_S,
) -> AsyncIterator[None]:
    """Call `note` when the API server stops responding and when it responds again, while the
    context is open."""
    contact = Contact(
        cluster.server,
        note=note,
        consequence="waiting for it",
        response_s=response_s,
    )
    async with Tasks() as tasks:
        watch = _watch(cluster, contact, poll_s=poll_s, response_s=response_s)
        tasks.start(watch, "watch the API server")
        yield


async def _watch(cluster: Cluster, contact: Contact, *, poll_s: float, response_s: float) -> None:
    while True:
        try:
            async with asyncio.timeout(response_s):
                await cluster.get(PROBE, accept=METADATA_OR_WHOLE)
        except (TimeoutError, Unreachable) as error:
            contact.handle_silence(error)
        except Refused as error:
            # A refusal for lack of rights is still a response.
            if error.status < 500:
                contact.handle_response()
            else:
                contact.handle_silence(error)
        else:
            contact.handle_response()
        await asyncio.sleep(poll_s)
