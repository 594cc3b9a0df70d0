"""The connection to a cluster, with an API server whose responses the test defines."""

import base64
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml
from aiohttp import web

from aiperf_svc.adapters.cluster.api.connection import Refused, Unreachable, connect
from aiperf_svc.adapters.cluster.api.objects import list_objects, read_catalog
from aiperf_svc.adapters.cluster.teardown.leaks import find_roots
from aiperf_svc.domain.errors import EnvironmentProblem
from tests.support.scripted_server import served

Responses = dict[str, Any]
FINE: Responses = {
    "/version": {"gitVersion": "v1.30.0"},
    "/api/v1/namespaces/kube-system": {"metadata": {"uid": "u-1"}},
}
AUTHORITY = base64.b64encode(Path(certifi.where()).read_bytes()).decode()
ABORT = "breaks the connection"
HTML = "<html>hello</html>"


class ApiServer:
    """Serves GET requests from a table. A status code instead of a response is an error."""

    def __init__(self) -> None:
        self.responses: Responses = dict(FINE)
        self.tokens: list[str] = []
        self.accepted: str | None = None
        self.url = ""
        self.date = ""
        self.applied: list[tuple[str, dict[str, str], Any]] = []
        """Content type, parameters and body of each PATCH."""

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "PATCH":
            body = yaml.safe_load(await request.text())
            self.applied.append((request.content_type, dict(request.query), body))
        self.tokens.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.accepted is not None and self.tokens[-1] != self.accepted:
            return _status(401, "Unauthorized")
        response = self.responses.get(request.path, 404)
        if isinstance(response, list):
            response = response.pop(0)
        if response is ABORT:
            assert request.transport is not None
            request.transport.abort()
        if response is HTML:
            return web.Response(text=HTML)
        if isinstance(response, int):
            return _status(response, "Forbidden" if response == 403 else "")
        return web.json_response(response, headers={"Date": self.date} if self.date else None)


def _status(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "reason": reason, "message": f"no {reason}".strip(), "code": code}
    return web.json_response(body, status=code, headers={"Retry-After": "0"})


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    async with served("/{path:.*}", server.handle) as server.url:
        yield server


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a kubeconfig with the context `there` and another `current`
    context, and returns its path."""

    def make(
        url: str, *, user: dict[str, Any] | None = None, current: str = "there", **cluster: Any
    ) -> str:
        servers = {current: {"server": "http://127.0.0.1:9"}, "there": {"server": url, **cluster}}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": each} for name, each in servers.items()],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": "u"}} for name in servers
            ],
            "current-context": current,
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return make


async def _message(**where: Any) -> str:
    with pytest.raises(EnvironmentProblem) as caught:
        async with connect(**where):
            pass
    message = str(caught.value)
    assert "\n" not in message
    return message


async def test_responding_cluster_is_identified_by_kube_system(
    api: ApiServer, write: Callable[..., str]
) -> None:
    async with connect(kubeconfig=write(api.url)) as cluster:
        assert (cluster.identity, cluster.version) == ("u-1", "v1.30.0")
        assert (cluster.context, cluster.server) == ("there", api.url)


async def test_address_is_the_identity_without_kube_system(
    api: ApiServer, write: Callable[..., str]
) -> None:
    api.responses["/api/v1/namespaces/kube-system"] = 403
    async with connect(kubeconfig=write(api.url)) as cluster:
        assert cluster.identity == api.url


async def test_missing_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "none")
    assert missing in await _message(kubeconfig=missing)
    monkeypatch.setenv("KUBECONFIG", missing)
    assert missing in await _message()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no kubeconfig at ~/.kube/config" in await _message()


async def test_unknown_context_is_named_with_known_ones(write: Callable[..., str]) -> None:
    message = await _message(kubeconfig=write("http://127.0.0.1:9"), context="elsewhere")
    assert "context 'elsewhere' is not in" in message
    assert message.endswith("it has there")


async def test_a_malformed_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("{{{")
    assert str(path) in await _message(kubeconfig=str(path))


async def test_silent_cluster_is_named_with_a_remedy(write: Callable[..., str]) -> None:
    kubeconfig = write("http://127.0.0.1:9")
    assert await _message(kubeconfig=kubeconfig) == (
        "the cluster at http://127.0.0.1:9 does not respond: Connection refused; check that it "
        f"runs and can be reached from here, and context 'there' of kubeconfig {kubeconfig}"
    )


async def test_cluster_with_unknown_host_is_reported(write: Callable[..., str]) -> None:
    message = await _message(kubeconfig=write("http://no-such-host.invalid:9"))
    assert message.startswith("the cluster at http://no-such-host.invalid:9 does not respond: ")
    assert "Cannot connect to host" not in message
    assert "ssl:" not in message


async def test_unresponsive_proxy_is_named(write: Callable[..., str]) -> None:
    proxied = write("http://127.0.0.1:9", **{"proxy-url": "http://127.0.0.1:2"})
    assert ": its proxy 127.0.0.1:2: Connection refused; " in await _message(kubeconfig=proxied)


async def test_api_server_without_tls_is_named(api: ApiServer, write: Callable[..., str]) -> None:
    message = await _message(kubeconfig=write(api.url.replace("http:", "https:")))
    assert " does not respond: TLS: " in message


@pytest.mark.parametrize(
    "server", ["here", "ftp://h/", "https://", "https://h:99999", "https://:1"]
)
async def test_invalid_address_is_named_with_its_context(
    write: Callable[..., str], server: str
) -> None:
    message = await _message(kubeconfig=write(server))
    assert message.startswith("context 'there' of kubeconfig ")
    assert message.endswith(f" has the server {server.rstrip('/')!r}; expected https://HOST:PORT")


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"hello": 1}, "is not Kubernetes' API: its /version has no gitVersion; check"),
        ([1], "/version is not Kubernetes' API: its response is '[1]'; check"),
        (HTML, "/version is not Kubernetes' API: its response is '<html>hello</html>'; check"),
        (302, "does not respond as Kubernetes' API does: no (302); check context 'there' of"),
        (502, "does not respond as Kubernetes' API does: no (502); check context 'there' of"),
    ],
)
async def test_server_without_kubernetes_is_reported(
    api: ApiServer, write: Callable[..., str], response: Any, message: str
) -> None:
    api.responses["/version"] = [response]
    assert message in await _message(kubeconfig=write(api.url))


async def test_refused_credentials_are_named(api: ApiServer, write: Callable[..., str]) -> None:
    api.accepted = "another"
    message = await _message(kubeconfig=write(api.url, user={"token": "mine"}))
    assert "refuses context 'there'" in message
    assert "mine" not in message


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Write a credential plugin with numbered tokens. It fails while a file `broken` exists."""
    count, broken, path = tmp_path / "count", tmp_path / "broken", tmp_path / "plugin"
    path.write_text(
        f"#!/bin/sh\ntest ! -e {broken} || exit 1\necho x >> {count}\nn=$(wc -l < {count})\n"
        'echo "{\\"status\\": {\\"token\\": \\"token-$n\\"}}"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def user_of(plugin: Path) -> dict[str, Any]:
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(plugin)}}


async def test_expired_token_is_requested_again(
    api: ApiServer, write: Callable[..., str], plugin: Path
) -> None:
    async with connect(kubeconfig=write(api.url, user=user_of(plugin))) as cluster:
        api.accepted = "token-2"
        await cluster.get("/version")
        await cluster.get("/version")
    assert api.tokens == ["token-1", "token-1", "token-1", "token-2", "token-2"]


async def test_failed_renewal_of_a_token_is_repeated(
    api: ApiServer, write: Callable[..., str], plugin: Path
) -> None:
    broken = plugin.with_name("broken")
    async with connect(kubeconfig=write(api.url, user=user_of(plugin))) as cluster:
        api.accepted = "token-2"
        broken.touch()
        # Like an unresponsive API server, this does not end a run's watch.
        with pytest.raises(Unreachable, match="cannot be used"):
            await cluster.get("/version")
        broken.unlink()
        await cluster.get("/version")
    assert api.tokens[-1] == "token-2"


async def test_renewed_token_is_of_the_same_context(
    api: ApiServer, write: Callable[..., str]
) -> None:
    async with connect(kubeconfig=write(api.url, user={"token": "token-1"})) as cluster:
        api.accepted = "token-2"
        # Simulates `kubectl config use-context` during a run.
        write(api.url, user={"token": "token-2"}, current="elsewhere")
        await cluster.get("/version")
        assert (cluster.context, cluster.server) == ("there", api.url)


async def test_kubeconfig_keys_leave_the_temporary_folder(
    api: ApiServer, write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    inline = {"certificate-authority-data": AUTHORITY}
    async with connect(kubeconfig=write(api.url, **inline)):
        assert list(temporary.iterdir()) == []
    broken = {"client-key-data": "bm8ga2V5", "client-certificate-data": "bm8gY2VydA=="}
    assert "cannot be used" in await _message(kubeconfig=write(api.url, user=broken))
    assert list(temporary.iterdir()) == []


async def test_api_errors_keep_status_and_reason(api: ApiServer, write: Callable[..., str]) -> None:
    async with connect(kubeconfig=write(api.url)) as cluster:
        api.responses["/x"] = 403
        with pytest.raises(Refused, match=r"no Forbidden \(403\)") as caught:
            await cluster.get("/x")
        assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
        await cluster.delete("/not-there")


async def test_stack_is_found_without_rights_to_list(
    api: ApiServer, write: Callable[..., str]
) -> None:
    labels = {"aiperf.dev/stack": "s", "aiperf.dev/run": "r"}
    anchor = {"metadata": {"name": "anchor-s", "namespace": "n", "uid": "1", "labels": labels}}
    api.responses |= {
        "/api/v1/namespaces": 403,
        "/api/v1/configmaps": 403,
        "/api/v1/namespaces/n/configmaps": {"items": [anchor]},
    }
    async with connect(kubeconfig=write(api.url)) as cluster:
        (found,) = await find_roots(cluster, stack="s", or_namespace="n")
        assert str(found) == "ConfigMap n/anchor-s"
        assert await find_roots(cluster, stack="s", or_namespace=None) == ()


@pytest.mark.parametrize("failing", ["namespaces", "configmaps"])
async def test_failed_list_does_not_hide_a_stack(
    api: ApiServer, write: Callable[..., str], failing: str
) -> None:
    api.responses |= {"/api/v1/namespaces": {"items": []}, "/api/v1/configmaps": {"items": []}}
    async with connect(kubeconfig=write(api.url)) as cluster:
        assert await find_roots(cluster, stack="s", or_namespace="n") == ()
        api.responses[f"/api/v1/{failing}"] = 500
        with pytest.raises(Unreachable, match=rf"stacks named s cannot .*: {failing} \("):
            await find_roots(cluster, stack="s", or_namespace="n")


async def test_applied_object_owns_its_fields(api: ApiServer, write: Callable[..., str]) -> None:
    path, body = "/api/v1/namespaces/n/configmaps/a", {"kind": "ConfigMap"}
    api.responses[path] = [201, {}]
    async with connect(kubeconfig=write(api.url)) as cluster:
        assert await cluster.apply(path, body) is True
        assert await cluster.apply(path, body, dryRun="All") is False
    params = {"fieldManager": "aiperf-svc", "force": "true"}
    kind = "application/apply-patch+yaml"
    assert api.applied == [(kind, params, body), (kind, {**params, "dryRun": "All"}, body)]


async def test_cluster_time_is_the_api_servers(api: ApiServer, write: Callable[..., str]) -> None:
    api.date = "Thu, 01 Jan 2026 00:00:00 GMT"
    async with connect(kubeconfig=write(api.url)) as cluster:
        assert await cluster.now() == datetime(2026, 1, 1, tzinfo=UTC)


async def test_request_to_overloaded_server_is_repeated(
    api: ApiServer, write: Callable[..., str]
) -> None:
    async with connect(kubeconfig=write(api.url)) as cluster:
        api.responses["/x"] = [429, 429, {"fine": True}]
        assert await cluster.get("/x") == {"fine": True}


async def test_truncated_response_is_an_error(api: ApiServer, write: Callable[..., str]) -> None:
    async with connect(kubeconfig=write(api.url)) as cluster:
        api.responses["/x"] = ABORT
        with pytest.raises(Unreachable, match="it closed the connection before the end"):
            await cluster.get("/x")


async def test_discovery_falls_back_to_api_groups(
    api: ApiServer, write: Callable[..., str]
) -> None:
    def resource(
        name: str, kind: str, *, namespaced: bool = True, verbs: str = "list delete"
    ) -> Any:
        return {"name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs.split()}

    group = {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}
    stale = {"name": "m.io", "versions": [{"groupVersion": "m.io/v1", "version": "v1"}]}
    pods = resource("pods", "Pod")
    api.responses |= {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": [group, stale]},
        "/api/v1": {
            "resources": [
                pods,
                resource("pods/log", "Pod"),
                resource("events", "Event"),
                resource("nodes", "Node", namespaced=False),
                resource("bindings", "Binding", verbs="create"),
            ]
        },
        "/apis/apps/v1": {"resources": [resource("deployments", "Deployment")]},
        "/apis/m.io/v1": 503,
        "/api/v1/pods": {"items": [{"metadata": {"name": "p", "namespace": "s", "uid": "1"}}]},
        "/api/v1/nodes": 403,
        "/apis/apps/v1/deployments": {"items": []},
    }
    async with connect(kubeconfig=write(api.url)) as cluster:
        catalog = await read_catalog(cluster)
        listed = await list_objects(cluster, catalog)
    assert [each.name for each in catalog.types] == ["pods", "nodes", "deployments.apps"]
    assert [str(each) for each in listed.objects] == ["Pod s/p"]
    assert set(listed.not_listed) == {
        "nodes (not allowed)",
        "m.io/v1 (its API server does not respond)",
    }
