"""Fixtures for scenarios on a real cluster. They use the cluster of E2E_CONTEXT, or else that of
tests/cluster, which is started if necessary and stopped at the end. Without a cluster, the
scenarios are skipped; under CI=true they fail.

A session has one cluster. Tests marked `two_nodes` need a cluster with two nodes and their own
session: `pytest -m two_nodes`. Together with other tests, they are deselected.
"""

import fcntl
import functools
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.bucket import BUCKET, Store, serving
from tests.support.stack.commands import PROJECT, run
from tests.support.stack.controllers import BUILD_S
from tests.support.stack.kinds import CommandKind, Kind, ServerKind
from tests.support.stack.rank_runs import add_rank_image
from tests.support.stack.rank_stack import Volumes
from tests.support.stack.real_cluster import (
    TOOLS,
    Cluster,
    NoClusterError,
    find_cluster,
    start_cluster,
    stop_cluster,
)
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Stack, shrink

LOAD_S = 120.0


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of this folder."""
    config.addinivalue_line("markers", "cluster: needs a real Kubernetes cluster")
    config.addinivalue_line("markers", "two_nodes: needs two nodes, and a session of such tests")
    config.addinivalue_line("markers", "gate: run by `make test`, the others by `make test-stack`")


@pytest.hookimpl(trylast=True)  # after `-m` has deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests for two nodes in a session for one node."""
    for_two = [item for item in items if _needs_two_nodes(item)]
    others = [item for item in items if not _needs_two_nodes(item)]
    if for_two and any(item.get_closest_marker("cluster") for item in others):
        items[:] = others
        config.hook.pytest_deselected(items=for_two)


def _needs_two_nodes(item: pytest.Item) -> bool:
    return item.get_closest_marker("two_nodes") is not None


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yield the cluster. A cluster that this fixture started is stopped at the end."""
    nodes = 2 if any(map(_needs_two_nodes, request.session.items)) else 1
    try:
        found = find_cluster(fewest_nodes=nodes)
    except NoClusterError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    if found:
        yield found
        return
    try:
        yield start_cluster(nodes=nodes)
    finally:
        stop_cluster()


@pytest.fixture(scope="session")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of this checkout's image, available to the cluster's pods: E2E_IMAGE, which
    the cluster must have or be able to pull, or else a newly built and loaded one."""
    configured = os.environ.get("E2E_IMAGE")
    if configured:
        return configured
    if not cluster.is_ours:
        pytest.fail(
            "E2E_CONTEXT is set and E2E_IMAGE is not; build and push this checkout's image "
            "(make image) and name it",
            pytrace=False,
        )
    # Several test processes need the same image.
    with (tmp_path_factory.getbasetemp().parent / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _built(cluster)


def _built(cluster: Cluster) -> str:
    name = run((str(PROJECT / "images" / "tag"),), environ=cluster.environ, timeout_s=30.0).strip()
    if name not in _images(cluster):
        cluster.add_image(name, PROJECT / "images" / "Containerfile", PROJECT)
    return name


@pytest.fixture(scope="session")
def base_image(cluster: Cluster) -> str:
    """Return the name of an image with Python that the cluster's pods have without a build."""
    configured = os.environ.get("E2E_IMAGE")
    if not configured and not cluster.is_ours:
        pytest.fail("E2E_CONTEXT is set and E2E_IMAGE is not", pytrace=False)
    load = (str(TOOLS / "load-image"), "--base")
    return configured or run(load, environ=cluster.environ, timeout_s=LOAD_S).strip()


@pytest.fixture(scope="session")
def rank_image(cluster: Cluster) -> Callable[[str], str]:
    """Return a function that builds an image of ranks from a file in `images/workloads`, such as
    `iperf/Containerfile`, once for each file."""
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, and images of ranks would need a registry")
    return functools.cache(functools.partial(add_rank_image, cluster))


def _images(cluster: Cluster) -> set[str]:
    """Return the images on the nodes. A node lists a new one only in its next status report."""
    return {
        known
        for node in cluster.objects("nodes")
        for listed in node["status"].get("images", ())
        for known in listed.get("names") or ()
    }


@pytest.fixture
def make_stack(
    cluster: Cluster, image: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[Callable[[], Stack]]:
    """Return a function that makes stacks with unique names. Afterwards, remove the stacks of
    failed tests, and fail if a destroyed stack left anything behind."""
    yield from stacks_in(tmp_path, cluster, image, record_property)


@pytest.fixture(scope="module")
def make_shared_stack(
    cluster: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Stack]]:
    """Like `make_stack`, for stacks that all tests of a file share."""
    yield from stacks_in(tmp_path_factory.mktemp("shared"), cluster, image, lambda *_: None)


def stacks_in(
    folder: Path, cluster: Cluster, image: str, record: Callable[[str, object], None]
) -> Iterator[Callable[[], Stack]]:
    """Yield a function that makes stacks, then remove them and check for leftovers."""
    made: list[Stack] = []

    def make() -> Stack:
        name = f"bench-smoke-{secrets.token_hex(3)}"
        made.append(Stack(cluster, name, folder / name, image=image))
        return made[-1]

    yield make
    left: list[str] = []
    for stack in made:
        try:
            stack.clean_up()
        finally:
            found = cluster.left_of(stack.name)
            if found:
                cluster.remove(stack.name)
        record(f"{stack.name} took seconds", stack.took_s)
        print(f"{stack.name}: {stack.took_s}")
        left += [f"{stack.name}: {each}" for each in found]
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a temporary folder whose path is short enough for a run's private folder."""
    with tempfile.TemporaryDirectory(prefix="aiperf-test-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def owners_namespace(cluster: Cluster) -> Iterator[str]:
    """Yield an empty namespace of another owner."""
    name = f"owner-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=true", timeout_s=120.0)


@pytest.fixture
def store(cluster: Cluster) -> Iterator[Store]:
    """Yield an S3 server on this machine with one bucket, at an address that pods reach."""
    if not cluster.is_ours:
        pytest.skip("pods of the cluster of E2E_CONTEXT cannot reach this machine")
    with serving(cluster.host_address()) as found:
        found.client.create_bucket(Bucket=BUCKET)
        yield found


@pytest.fixture
def make_runner(cluster: Cluster, image: str, tmp_path: Path) -> Iterator[Callable[[], Runner]]:
    """Return a function that makes stack files for `aiperf-svc`, each with its own name and state.
    Fails afterwards if one of the stacks left anything behind."""
    yield from runners_in(tmp_path, cluster, image)


@pytest.fixture
def volumes(cluster: Cluster, temporary: Path) -> Iterator[Volumes]:
    """Yield volumes for the claims of ranks and remove them afterwards."""
    made = Volumes(cluster, temporary)
    yield made
    made.remove()


@pytest.fixture(params=["server", "command"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The workload of a runner's stack: an inference server, then a command with a volume claim."""
    if request.param == "server":
        return ServerKind()
    image, volumes = map(request.getfixturevalue, ("base_image", "volumes"))
    return CommandKind(image, volumes)


@pytest.fixture(scope="module")
def make_shared_runner(
    cluster: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Runner]]:
    """Like `make_runner`, for stacks that all tests of a file share."""
    yield from runners_in(tmp_path_factory.mktemp("shared"), cluster, image)


def runners_in(folder: Path, cluster: Cluster, image: str) -> Iterator[Callable[[], Runner]]:
    """Yield a function that makes stack files, then check for leftovers of their stacks."""
    made: list[Runner] = []

    def make() -> Runner:
        name = f"bench-smoke-{secrets.token_hex(3)}"
        made.append(Runner(cluster, name, folder / name, image=image))
        made[-1].change(shrink)
        return made[-1]

    yield make
    left = []
    for runner in made:
        # `profile --kubernetes` appends to the name.
        stacks = (runner.name, *(path.name for path in runner.state_home.glob("ephemeral/*")))
        for stack in stacks:
            found = cluster.left_of(stack)
            if found:
                cluster.remove(stack)
            left += [f"{stack}: {each}" for each in found]
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def fake_nodes(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """Create the number of fake nodes in the module's FAKE_NODES."""
    if not cluster.is_ours:
        pytest.skip("fake nodes are created only in the cluster of tests/cluster")
    number = str(request.module.FAKE_NODES)
    run((str(TOOLS / "kwok-up"), number), environ=cluster.environ, timeout_s=BUILD_S)
    yield
    run((str(TOOLS / "kwok-down"),), environ=cluster.environ, timeout_s=BUILD_S)
