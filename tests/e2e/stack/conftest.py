"""Fixtures for scenarios on a real cluster. They run only when AIPERF_E2E=1 asks for them: each
takes a minute and needs a cluster."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_cluster import PROJECT, TOOLS, Cluster, NoClusterError, find_cluster, run
from real_stack import Stack

IMAGE_S = 900.0
"""Longest time to build the image with nothing in the cache."""
LOAD_S = 120.0

collect_ignore_glob = [] if os.environ.get("AIPERF_E2E") == "1" else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """The marker of everything here."""
    config.addinivalue_line("markers", "cluster: needs a real Kubernetes cluster")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster; without one the tests are skipped, and fail where they must not be."""
    try:
        return find_cluster()
    except NoClusterError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the image of this checkout, there for the cluster's pods: E2E_IMAGE, which the
    cluster must be able to pull or have, else built and loaded."""
    given = os.environ.get("E2E_IMAGE")
    if given:
        return given
    if not cluster.is_ours:
        pytest.fail(
            "E2E_CONTEXT is set and E2E_IMAGE is not; build and push this checkout's image "
            "(images/build) and name it",
            pytrace=False,
        )
    name = run((str(PROJECT / "images" / "tag"),), environ=cluster.environ, timeout_s=30.0).strip()
    known = {
        known
        for node in cluster.objects("nodes")
        for listed in node["status"].get("images", ())
        for known in listed.get("names") or ()
    }
    if name not in known:
        archive = tmp_path_factory.mktemp("image") / "image.tar"
        recipe = (str(PROJECT / "images" / "Containerfile"), str(PROJECT), name, str(archive))
        run((str(TOOLS / "build-image"), *recipe), environ=cluster.environ, timeout_s=IMAGE_S)
        run((str(TOOLS / "load-image"), str(archive)), environ=cluster.environ, timeout_s=LOAD_S)
        archive.unlink()
    return name


@pytest.fixture
def make_stack(
    cluster: Cluster,
    image: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Callable[[], Stack]]:
    """Makes stacks with names of their own. Afterwards: removes what a failed test left, and fails
    a test that left anything which it had destroyed."""
    made: list[Stack] = []

    def make() -> Stack:
        name = f"bench-smoke-{secrets.token_hex(3)}"
        made.append(Stack(cluster, name, tmp_path / name, image=image))
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
        record_property(f"{stack.name} took seconds", stack.took_s)
        left += [f"{stack.name}: {each}" for each in found]
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def owners_namespace(cluster: Cluster) -> Iterator[str]:
    """An empty namespace of somebody else's."""
    name = f"owner-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=true", timeout_s=120.0)
