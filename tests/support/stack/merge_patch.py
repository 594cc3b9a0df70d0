"""Patches objects of a cluster, which the project itself never does."""

import json
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster


async def merge_patch(cluster: Cluster, path: str, body: dict[str, Any]) -> None:
    """Patch the object at `path`. A null removes a member."""
    headers = {"Content-Type": "application/merge-patch+json"}
    data = json.dumps(body).encode()
    async with cluster.stream("PATCH", path, headers=headers, data=data) as response:
        assert response.status == 200, await response.text()
