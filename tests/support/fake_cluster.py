"""A fake cluster with a few objects and permissions."""

from typing import Any, cast

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight.rights import ACCESS_REVIEWS

Json = dict[str, Any]


class FakeCluster:
    """Serves GET requests from `objects` by path. Namespaces in `open_to` admit pods, which end
    with `pod_status`. The user has all permissions except those in `denied`, such as `get pods`."""

    def __init__(
        self,
        objects: dict[str, Json] | None = None,
        *,
        open_to: tuple[str, ...] = (),
        pod_status: Json | None = None,
        denied: tuple[str, ...] = (),
        refusal: str = 'admission webhook "w" denied the request',
    ) -> None:
        self.objects, self._open_to, self._denied = objects or {}, open_to, denied
        self._pod_status = pod_status or {"phase": "Succeeded"}
        self._refusal = refusal
        self.namespace = "team"
        self.dry_runs: list[str] = []
        self.pods_made: list[str] = []

    @property
    def typed(self) -> Cluster:
        return cast(Cluster, self)

    async def get(self, path: str, **params: str) -> Json:
        if path in self.objects:
            return self.objects[path]
        if path.rpartition("/")[2].startswith("preflight-"):
            return {"metadata": {"name": "preflight"}, "status": self._pod_status}
        if path.rpartition("/")[2] in ("networkpolicies", "endpointslices"):
            return {"items": []}
        raise Refused(f"no {path}", status=404, reason="NotFound")

    async def post(self, path: str, body: Json, **params: str) -> Json:
        if path == ACCESS_REVIEWS:
            attributes = body["spec"]["resourceAttributes"]
            what = f"{attributes['verb']} {attributes['resource']}"
            return {"status": {"allowed": what not in self._denied}}
        namespace = path.split("/")[4]
        if params.get("dryRun"):
            self.dry_runs.append(namespace)
        if namespace not in self._open_to:
            raise Refused(self._refusal, status=403, reason="Forbidden")
        if not params:
            self.pods_made.append(namespace)
        return body

    async def delete(self, path: str, **options: Any) -> None:
        self.pods_made.remove(path.split("/")[4])
