"""Watches the objects of a stack during the run.

The services report a loss only after their own timeouts, and not at all if the connection to them
is lost. The cluster reports it at once.
"""

import asyncio
import logging
from collections.abc import Callable

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import find_object
from aiperf_svc.adapters.cluster.watching.contact import METADATA_OR_WHOLE, RESPONSE_S, Contact
from aiperf_svc.adapters.cluster.watching.run_losses import Loss, RunLosses
from aiperf_svc.plan.identity import ANCHOR, COMPONENT_LABEL, STACK_LABEL
from aiperf_svc.plan.stack import StackPlan

POLL_S = 1.0
"""Seconds between polls. A poll reads two or three objects, and a short list of pods from the API
server's cache."""

log = logging.getLogger(__name__)


class RunWatch:
    """Watches one stack. All its pods must exist at the start of the watch."""

    def __init__(
        self,
        cluster: Cluster,
        plan: StackPlan,
        *,
        namespace: str,
        note: Callable[[str], None],
        poll_s: float = POLL_S,
        response_s: float = RESPONSE_S,
    ) -> None:
        """`note` is called when the API server stops responding and when it responds again."""
        self._cluster = cluster
        self._poll_s, self._response_s = poll_s, response_s
        self._contact = Contact(
            cluster.server,
            note=note,
            consequence="the run continues in the cluster; trying again",
            response_s=response_s,
        )
        self._losses = RunLosses()
        inside = f"/api/v1/namespaces/{namespace}"
        self._roots = {inside: ("Namespace", namespace)}
        if plan.config.deployment.namespace.mode == "existing":
            anchor = plan.identity.name(ANCHOR)
            self._roots[f"{inside}/configmaps/{anchor}"] = ("ConfigMap", anchor)
        singles = [pod.name for pod in plan.services if pod.name not in plan.replicated]
        watched = [pod.name for pod in (plan.target, plan.ranks) if pod is not None]
        names = ",".join((*singles, *watched))
        self._pods: str | None = f"{inside}/pods"
        self._selector = f"{STACK_LABEL}={plan.identity.stack},{COMPONENT_LABEL} in ({names})"

    @property
    def silence(self) -> str:
        """Message while the API server does not respond, else empty."""
        return self._contact.silence

    async def next_losses(self) -> tuple[Loss, ...]:
        """Wait for losses and return them. Each is returned once."""
        while True:
            try:
                async with asyncio.timeout(self._response_s):
                    lost = [*await self._lost_roots(), *await self._lost_pods()]
            except (TimeoutError, Unreachable) as error:
                self._contact.handle_silence(error)
            else:
                self._contact.handle_response()
                if lost:
                    return tuple(lost)
            await asyncio.sleep(self._poll_s)

    async def _lost_roots(self) -> list[Loss]:
        lost = []
        for path, (kind, name) in tuple(self._roots.items()):
            try:
                found = await find_object(self._cluster, path, accept=METADATA_OR_WHOLE)
            except Refused as error:
                self._leave_out(error)
                del self._roots[path]
                continue
            loss = self._losses.handle_root(kind, name, found)
            lost += [loss] if loss else []
        return lost

    async def _lost_pods(self) -> tuple[Loss, ...]:
        if self._pods is None:
            return ()
        try:
            listed = await self._cluster.get(
                self._pods, labelSelector=self._selector, resourceVersion="0"
            )
        except Refused as error:
            self._leave_out(error)
            self._pods = None
            return ()
        return self._losses.handle_pods(listed["items"])

    def _leave_out(self, error: Refused) -> None:
        """Stop watching an unreadable object. The services notice its loss later."""
        if error.status != 403:
            raise Unreachable(str(error)) from error
        log.info("not watched while the run is measured: %s", error)
