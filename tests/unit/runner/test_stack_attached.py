"""Commands attach to a stack that another Pulumi program has created, such as one of the component,
if it has the same owner."""

import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.adapters.cluster import results_access
from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import Users
from aiperf_svc.core.cluster.lease import StackLease
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.stack import attached
from aiperf_svc.runner.stack.attached import attach
from tests.support.fake_cluster import FakeCluster

STACK, INSIDE = "dev-load", "/api/v1/namespaces/n"
LEASE = StackLease(
    stack=STACK, namespace="n", owner="alice@build", run_id="cafe", created=datetime.now(UTC)
)
OF_ALICE = Users(alive={"uid": LEASE})


def service(name: str, port: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": port}]}}


class Place:
    """A cluster with a stack that the state of this machine does not have."""

    def __init__(self, folder: Path) -> None:
        self.environ = {"XDG_STATE_HOME": str(folder), "AIPERF_OWNER": "alice@build"}
        self.users: dict[str | None, Users] = {None: OF_ALICE}
        """Who uses stacks of its name, by namespace; None for all namespaces."""
        self.services = [service(f"worker-{STACK}", 9001), service(f"records-{STACK}", 9090)]
        self.opened: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def open_project(self, *_: Any, **__: Any) -> Iterator[SimpleNamespace]:
        async def outputs() -> dict[str, Any]:
            return {}

        yield SimpleNamespace(outputs=outputs)

    @contextlib.asynccontextmanager
    async def connect(self, **_: Any) -> AsyncIterator[Cluster]:
        token = base64.b64encode(b"hush").decode()
        cluster = FakeCluster(
            {
                f"{INSIDE}/services": {"items": self.services},
                f"{INSIDE}/secrets/keys-{STACK}": {"data": {"token": token}},
            }
        )
        cluster.identity = cluster.server = "uid"  # type: ignore[attr-defined]
        yield cluster.typed

    async def users_of(self, _: Cluster, stack: str, *, namespace: str | None) -> Users:
        assert stack == STACK
        return self.users.get(namespace, Users())

    @contextlib.asynccontextmanager
    async def open_results(self, _: Cluster, *, outputs: dict[str, Any]) -> AsyncIterator[str]:
        self.opened.append(outputs)
        yield "http://127.0.0.1:1"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name in ("open_project", "connect", "open_results"):
        monkeypatch.setattr(attached, name, getattr(made, name))
    monkeypatch.setattr(results_access, "users_of", made.users_of)
    return made


@pytest.mark.parametrize("listed_in", [None, "team"], ids=["all", "own namespace"])
async def test_stack_of_another_program_is_found(place: Place, listed_in: str | None) -> None:
    place.users = {listed_in: OF_ALICE}
    async with attach(STACK, environ=place.environ) as found:
        assert found.outputs == {
            "namespace": "n",
            "runId": "cafe",
            "results": {"service": f"records-{STACK}", "port": 9090},
            "resultsToken": "hush",
        }
    assert place.opened == [found.outputs]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (Users(), "stack dev-load is not up; start it with"),
        (Users(holder="bob@x works on it"), "bob@x works on it"),
        (
            Users(alive={"uid": LEASE, "other": LEASE}),
            r"up in namespace n \(of alice@build\), n \(of alice@build\), but not in this state",
        ),
    ],
)
async def test_stack_of_no_single_owner_is_refused(
    place: Place, users: Users, message: str
) -> None:
    place.users = {None: users}
    with pytest.raises(EnvironmentProblem, match=message):
        async with attach(STACK, environ=place.environ):
            pass
    assert place.opened == []


async def test_stack_of_another_owner_is_not_used(place: Place) -> None:
    environ = {**place.environ, "AIPERF_OWNER": "bob@laptop"}
    with pytest.raises(
        EnvironmentProblem, match=r"namespace n \(of alice@build\), but not in this"
    ):
        async with attach(STACK, environ=environ):
            pass
    assert place.opened == []


async def test_stack_that_is_starting_has_no_results(place: Place) -> None:
    del place.services[1]
    with pytest.raises(EnvironmentProblem, match="dev-load in namespace n has no results yet"):
        async with attach(STACK, environ=place.environ):
            pass
