"""Summarises the events of the Pulumi CLI in a few lines."""

import time
from collections.abc import Callable

from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.domain.json_objects import Json

EVERY_S = 3.0
"""Seconds between two lines."""
WORDS = {
    "create": "created",
    "create-replacement": "created again",
    "update": "changed",
    "delete": "removed",
    "delete-replaced": "removed",
}
"""Operations that are counted. Components and providers are not Kubernetes objects."""
KUBERNETES = "kubernetes:"
LEASE = "kubernetes:coordination.k8s.io/v1:Lease"


class Progress:
    """Counts the operations done, and keeps the errors."""

    def __init__(
        self,
        subject: str,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_lease: Callable[[str], None] = lambda namespace: None,
    ) -> None:
        """`on_lease` gets the namespace of the stack's Lease as soon as the Lease exists."""
        self._subject, self._say, self._clock, self._on_lease = subject, say, clock, on_lease
        self._printed_mono_s = clock()
        self._counts: dict[str, int] = {}
        self._open: dict[str, None] = {}
        self._stepped_mono_s = clock()
        self.errors: list[str] = []

    @property
    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Kinds and names, in the program, of the objects with a running operation."""
        pairs = (name.split(" ", 1) for name in self._open)
        return tuple((kind, name) for kind, name in pairs)

    @property
    def has_begun(self) -> bool:
        """True if any operation has started."""
        return bool(self._counts or self._open)

    @property
    def quiet_s(self) -> float:
        """Seconds since an operation last started or ended."""
        return self._clock() - self._stepped_mono_s

    def handle(self, event: Json) -> None:
        """Handle one event of the CLI's log."""
        if "diagnosticEvent" in event:
            self._diagnose(event["diagnosticEvent"])
        for kind in ("resourcePreEvent", "resOutputsEvent", "resOpFailedEvent"):
            if kind in event:
                self._step(kind, event[kind]["metadata"])
        made = event.get("resOutputsEvent", {}).get("metadata", {})
        if made.get("type") == LEASE and (new := made.get("new")) and new.get("id"):
            self._on_lease(new["id"].partition("/")[0])
        if self._clock() - self._printed_mono_s >= EVERY_S and self.has_begun:
            self._printed_mono_s = self._clock()
            self._say(self.line())

    def line(self) -> str:
        """Return the state as one line: `up: 31 created; waiting for Deployment worker`."""
        done = ", ".join(f"{count} {word}" for word, count in self._counts.items()) or "begun"
        waiting = f"; waiting for {', '.join(list(self._open)[:3])}" if self._open else ""
        more = f" and {len(self._open) - 3} more" if len(self._open) > 3 else ""
        return f"{self._subject}: {done}{waiting}{more}"

    def _step(self, kind: str, metadata: Json) -> None:
        operation, urn = metadata.get("op", ""), metadata.get("urn", "")
        if operation not in WORDS or not metadata.get("type", "").startswith(KUBERNETES):
            return
        self._stepped_mono_s = self._clock()
        name = f"{metadata['type'].rpartition(':')[2]} {urn.rpartition('::')[2]}"
        if kind == "resourcePreEvent":
            self._open[name] = None
            return
        self._open.pop(name, None)
        if kind == "resOutputsEvent":
            word = WORDS[operation]
            self._counts[word] = self._counts.get(word, 0) + 1

    def _diagnose(self, diagnostic: Json) -> None:
        text = diagnostic.get("message", "").strip()
        if diagnostic.get("severity") == "error" and text and text not in self.errors:
            self.errors.append(text)
