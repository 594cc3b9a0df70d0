"""Reads from Pulumi's state which cluster, namespace, benchmark and run a stack has. Pure."""

from collections.abc import Iterable, Iterator

from aiperf_svc.config.yaml_files import parse_yaml
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import ANCHOR, RUN_ID

LIFETIME, ROOT_UIDS = "aiperf:stack:Lifetime", "rootUids"
"""Type of a component, and its output with the UIDs of the roots that a state created: the anchor
and the stack's own namespace. Pulumi stores the output as soon as both exist, even if `up` fails
afterwards. A refresh does not change it, but reads another stack's object with the same name as if
it were the state's own."""
ROOT_TYPES = ("kubernetes:core/v1:Namespace", "kubernetes:core/v1:ConfigMap")


def resources(state: Json, kind: str) -> Iterator[Json]:
    """Yield the resources whose type starts with `kind`, except replaced ones."""
    for each in (state.get("deployment") or {}).get("resources") or ():
        if each.get("type", "").startswith(kind) and not each.get("delete"):
            yield each


def made_roots(resources: Iterable[Json]) -> frozenset[str]:
    """Return the UIDs of the roots that this state created, from the type and the outputs of its
    resources. The output is missing if `up` was killed earlier or an older version created the
    stack. The result is then the UIDs of all namespaces and ConfigMaps in the state."""
    registered, objects = set[str](), set[str]()
    for each in resources:
        outputs = each.get("outputs") or {}
        if each.get("type") == LIFETIME:
            registered.update(filter(None, outputs.get(ROOT_UIDS) or ()))
        elif each.get("type") in ROOT_TYPES:
            objects.add((outputs.get("metadata") or {}).get("uid") or "")
    return frozenset(registered or objects - {""})


def namespaces_in(resources: Iterable[Json]) -> frozenset[str]:
    """Return the names of the namespaces among resources."""
    return frozenset(
        str(((each.get("outputs") or {}).get("metadata") or {}).get("name"))
        for each in resources
        if each.get("type") == ROOT_TYPES[0]
    )


def cluster_scoped_in(resources: Iterable[Json]) -> frozenset[str]:
    """Return the cluster-scoped objects among resources, except namespaces, as `KIND/NAME`."""
    found = set[str]()
    for each in resources:
        metadata = (each.get("outputs") or {}).get("metadata") or {}
        is_global = metadata.get("uid") and not metadata.get("namespace")
        if is_global and each["type"] != ROOT_TYPES[0]:
            found.add(f"{each['type'].rpartition(':')[2]}/{metadata.get('name')}")
    return frozenset(found)


def namespace_of(state: Json) -> tuple[str, str] | None:
    """Return the name and UID of the stack's own namespace."""
    for each in resources(state, "kubernetes:core/v1:Namespace"):
        metadata = each.get("outputs", {}).get("metadata", {})
        if metadata.get("uid"):
            return str(metadata["name"]), str(metadata["uid"])
    return None


def roots_of(state: Json, *, stack: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Return the UIDs of the stack's roots (its namespaces and anchors), and the namespace and name
    of each root with an unfinished creation. A creation is unfinished if it had not ended when the
    state was written, or if `up` was killed before it wrote the UID. Pulumi keeps these entries
    until a refresh clears them. A root of another stack that a refresh has read is excluded."""
    deployment = state.get("deployment") or {}

    def metadata(each: Json, side: str) -> Json:
        found: Json = (each.get(side) or {}).get("metadata") or {}
        is_root = each.get("type") == ROOT_TYPES[0] or found.get("name") == f"{ANCHOR}-{stack}"
        return found if each.get("type") in ROOT_TYPES and is_root else {}

    made = {
        str(found["uid"]): each
        for each in deployment.get("resources") or ()
        if (found := metadata(each, "outputs")).get("uid")
    }
    making = [
        metadata(each["resource"], "inputs")
        for each in deployment.get("pending_operations") or ()
        if each.get("type") == "creating"
    ]
    own, known = set(made), made_roots(resources(state, LIFETIME))
    present = {uid for uid, each in made.items() if not each.get("delete")}
    anchors = {uid for uid in present if made[uid]["type"] == ROOT_TYPES[1]}
    if known and anchors and not anchors & known:
        # The state's own stack is gone, and a refresh has read another stack.
        own -= present - known
    return frozenset(own), frozenset(
        (str(each.get("namespace") or ""), str(each["name"])) for each in making if each.get("name")
    )


def benchmark_of(state: Json) -> Json | None:
    """Return the benchmark as the services read it; None if nothing is deployed."""
    for each in resources(state, "kubernetes:core/v1:ConfigMap"):
        text = (each.get("inputs", {}).get("data") or {}).get("config.yaml")
        if text:
            content: Json = parse_yaml(text)
            return content
    return None


def runs_of(state: Json) -> frozenset[str]:
    """Return the run ids of the services' pods. There are several if an `up` was interrupted."""
    return frozenset(
        str(variable["value"])
        for each in resources(state, "kubernetes:apps/v1:Deployment")
        for container in each["inputs"]["spec"]["template"]["spec"]["containers"]
        for variable in container.get("env") or ()
        if variable["name"] == RUN_ID
    )


def is_up(state: Json, *, run_id: str) -> bool:
    """Return whether an `up` of this run has completed: its outputs exist, and all pods belong to
    it."""
    outputs = [each.get("outputs") or {} for each in resources(state, "pulumi:pulumi:Stack")]
    has_outputs = any(each.get("runId") == run_id for each in outputs)
    return has_outputs and runs_of(state) == {run_id}


def check_cluster(state: Json, *, stack: str, identity: str) -> None:
    """Raise EnvironmentProblem if the state belongs to a stack in another cluster."""
    if not any(resources(state, "kubernetes:")):
        return
    for each in resources(state, "pulumi:providers:kubernetes"):
        known = each.get("inputs", {}).get("clusterIdentifier")
        if known and known != identity:
            raise EnvironmentProblem(
                f"stack {stack} is in another cluster (kube-system {known}) than this context's "
                f"({identity}); use --context or --kubeconfig, or remove it there first. If that "
                f"cluster no longer exists: pulumi stack rm --force --preserve-config {stack}"
            )
