"""The runner narrows the way of the deadline's pod to the API server, where it is known."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.runner.stack.discovery import CILIUM, SERVICE, SLICES, with_api_server
from aiperf_svc.runner.stack.request import StackRequest

KNOWN = {
    SERVICE: {"spec": {"clusterIPs": ["10.96.0.1"]}},
    SLICES: {"items": [{"endpoints": [{"addresses": ["172.30.0.2"]}]}]},
}


class _Api:
    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known

    async def get(self, path: str, **params: str) -> Any:
        if path in self._known:
            return self._known[path]
        raise Refused("forbidden", status=403, reason="Forbidden")


async def _narrowed(known: dict[str, Any], **deployment: Any) -> tuple[StackRequest, list[str]]:
    benchmark = {
        "endpoint": {"url": "http://t", "model": "m"},
        "load": {"concurrency": 1, "requests": 1},
        "deployment": {"ttl": "1h", **deployment},
    }
    config = parse_config(benchmark, "")
    request = StackRequest(stack="s", config=config, environ={})
    said: list[str] = []
    found = await with_api_server(request, cast("Cluster", _Api(known)), say=said.append)
    return found, said


async def test_the_program_is_told_where_the_api_server_is() -> None:
    found, said = await _narrowed(KNOWN)
    cidrs = ("10.96.0.1/32", "172.30.0.2/32")
    assert found.config.deployment.api_server_cidrs == cidrs
    assert not said


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "cannot be read"),
        ({**KNOWN, CILIUM: {}}, "Cilium does not match the API server by its address"),
        ({**KNOWN, SLICES: {"items": []}}, "reports no address"),
    ],
)
async def test_where_it_is_not_known_every_address_is_allowed_and_said(
    known: dict[str, Any], why: str
) -> None:
    found, said = await _narrowed(known)
    assert found.config.deployment.api_server_cidrs == ()
    (note,) = said
    assert note.startswith("note: the deadline's pod may reach every address, because ")
    assert why in note


@pytest.mark.parametrize("own", [{"api_server_cidrs": ["10.0.0.0/8"]}, {"network_policies": False}])
async def test_what_the_file_says_of_the_api_server_stays(own: dict[str, Any]) -> None:
    found, said = await _narrowed(KNOWN, **own)
    assert found.config.deployment.api_server_cidrs == tuple(own.get("api_server_cidrs", ()))
    assert not said
