"""Detects when a starting stack can no longer succeed, from its objects' statuses.

Some states are final at once. Others may be temporary and count only after they have lasted for a
while. Pure: the time is an argument.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from aiperf_svc.config.deployment import RANK_POD
from aiperf_svc.config.target import HOST
from aiperf_svc.core.cluster.conditions import all_containers_of, conditions_of, has_condition
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.release import READINESS

PULL_S = 20.0
"""Maximum duration of a failing image pull. The kubelet retries after 10 s and may succeed."""
CREATE_S = 10.0
"""Maximum time for which pods may be refused. After a deletion, quotas are recomputed and accounts
get their tokens within seconds."""
CONFIG_S = 15.0
"""Maximum time for which a Secret or ConfigMap may be missing: it may be created after its pod."""
CLAIM_S = 120.0
"""Maximum time for which a claim may have no volume: storage classes create volumes on demand."""
CRASHES = 2
"""Restarts after which a pod counts as crashing."""
NO_PROGRAM = "executable file not found"
NEEDS_SHELL = "the image of a rank needs a POSIX shell: change workload.image"
PULL = "image pull"
IMAGE_KEYS = {
    RANK_POD: "workload.image",
    HOST: "deployment.target.image (of the mock server: deployment.image.name)",
}
"""Keys of the config with the image of a container; other containers use the services' image."""
IMAGE_STATES = (PULL, "InvalidImageName", "ErrImageNeverPull")
"""States of a pod whose image is not available."""
FINAL_PULLS = (
    "not found", "manifest unknown", "denied", "unauthorized", "forbidden", "authentication",
    "no match for platform", "invalid",
)  # fmt: skip
"""Words in a registry's response that rule out a successful retry."""

DENIALS = ("denied request", "denied the request")
"""Words in the refusals of ValidatingAdmissionPolicies and webhooks."""
RULE_REMEDY = (
    "if a rule asks for labels or annotations, set deployment.labels and deployment.annotations; "
    "else use another namespace, or ask who made the rule"
)
NO_CLAIMS: Mapping[str, Json] = {}


class PodProblem(msgspec.Struct, frozen=True):
    """A condition that keeps a pod from running."""

    subject: str
    """The affected pod or Deployment."""
    state: str
    """Reason or state in Kubernetes' words."""
    line: str
    """The problem, with the value and the remedy."""
    limit_s: float
    """Duration from which the problem counts as a failed start."""


class StartupFailureDetector:
    """Detects when a starting stack can no longer succeed."""

    def __init__(self, *, unschedulable_s: float, longest_s: float = math.inf) -> None:
        """`longest_s`, the readiness timeout of pods, limits the duration of every problem."""
        self._unschedulable_s = unschedulable_s
        self._longest_s = longest_s
        self._since: dict[tuple[str, str], float] = {}

    def handle(
        self,
        pods: Sequence[Json],
        deployments: Sequence[Json],
        refusals: Sequence[Json] = (),
        claims: Sequence[Json] = (),
        *,
        now_s: float,
    ) -> str | None:
        """Record the objects as they are at `now_s`, and return one line when the start has failed.

        `refusals` are Events of StatefulSets that still lack pods, `claims` are Events of
        PersistentVolumeClaims.
        """
        claim_events = {each["involvedObject"]["name"]: each for each in claims}
        problems = [
            *(
                each
                for pod in pods
                for each in pod_problems(pod, self._unschedulable_s, claim_events)
            ),
            *(each for deployment in deployments for each in deployment_problems(deployment)),
            *(set_problem(event) for event in refusals),
        ]
        keys = [(each.subject, each.state) for each in problems]
        self._since = {key: self._since.get(key, now_s) for key in keys}
        lost = [
            each.line
            for each, key in zip(problems, keys, strict=True)
            if now_s - self._since[key] >= min(each.limit_s, self._longest_s)
        ]
        if not lost:
            return None
        more = f" (and {len(lost) - 1} more like it)" if len(lost) > 1 else ""
        return lost[0] + more


def pod_problems(
    pod: Json, unschedulable_s: float, claims: Mapping[str, Json] = NO_CLAIMS
) -> Iterator[PodProblem]:
    """Yield the problems that keep a pod from running. `claims` has each claim's last Event."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return
    message = _unscheduled(pod)
    if message is not None and lacks_volume(pod):
        yield _without_volume(pod, message, unschedulable_s, claims)
    elif message is not None:
        yield _unplaced(name, message, unschedulable_s)
    if status.get("reason") in ("Evicted", "NodeAffinity", "OutOfcpu", "OutOfmemory"):
        line = f"a node rejected pod {name}: {status['reason']}: {_one_line(status.get('message'))}"
        yield PodProblem(name, status["reason"], line, CREATE_S)
    for container in all_containers_of(pod):
        yield from _container_problems(name, container)


def lacks_volume(pod: Json) -> bool:
    """Return whether a claim without a volume keeps a pod from being scheduled."""
    return "persistentvolumeclaim" in (_unscheduled(pod) or "").lower()


def claims_of(pod: Json) -> tuple[str, ...]:
    mounted = (each.get("persistentVolumeClaim") for each in pod["spec"].get("volumes") or ())
    return tuple(each["claimName"] for each in mounted if each)


def _unscheduled(pod: Json) -> str | None:
    """Return the reason why a pod fits on no node; None if it is scheduled."""
    placed = conditions_of(pod).get("PodScheduled", {})
    return _one_line(placed.get("message")) if placed.get("reason") == "Unschedulable" else None


def _without_volume(
    pod: Json, message: str, unschedulable_s: float, claims: Mapping[str, Json]
) -> PodProblem:
    name = pod["metadata"]["name"]
    events = [claims[each] for each in claims_of(pod) if each in claims]
    why = _one_line(events[0].get("message")) if events else message
    return PodProblem(
        name,
        "Unschedulable",
        f"pod {name} waits for its volume: {why}; the claim stays pending until the cluster "
        "provides a volume of its class and size (deployment.ranks.volume)",
        max(CLAIM_S, unschedulable_s),
    )


def _unplaced(pod: str, message: str, unschedulable_s: float) -> PodProblem:
    remedy = "add nodes or lower its requests (deployment.pods), or change deployment.placement"
    if "affinity" in message:
        remedy += " or deployment.ranks.nodes"
    line = f"pod {pod} fits on no node: {message}; {remedy}"
    return PodProblem(pod, "Unschedulable", line, unschedulable_s)


def _container_problems(pod: str, container: Json) -> Iterator[PodProblem]:
    if container.get("name") == READINESS:
        yield from _release_problems(pod, container)
        return
    waiting = container.get("state", {}).get("waiting") or {}
    state, message = waiting.get("reason", ""), _one_line(waiting.get("message"))
    image = container.get("image", "")
    key = IMAGE_KEYS.get(container.get("name", ""), "deployment.image.name")
    if state in ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"):
        is_final = any(word in message.lower() for word in FINAL_PULLS)
        yield PodProblem(
            pod,
            # The two states alternate while the kubelet retries.
            PULL,
            f"pod {pod}: image {image!r} cannot be pulled: {state}: {message}; check {key}, "
            "deployment.image.pull_secrets, and that nodes reach the registry",
            0.0 if is_final else PULL_S,
        )
    elif state in ("InvalidImageName", "ErrImageNeverPull"):
        remedy = (
            "load the image onto the nodes, or set deployment.image.pull_policy: IfNotPresent"
            if state == "ErrImageNeverPull"
            else f"correct {key}"
        )
        yield PodProblem(
            pod, state, f"pod {pod}: image {image!r}: {state}: {message}; {remedy}", 0.0
        )
    elif state in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        line = f"pod {pod} cannot start its container: {state}: {message}"
        if _lacks_shell(container, message):
            line += f"; {NEEDS_SHELL}"
        yield PodProblem(pod, state, line, CONFIG_S)
    elif container.get("restartCount", 0) >= CRASHES and not container.get("ready"):
        yield PodProblem(pod, "crashing", _crash_text(pod, container), 0.0)


def _release_problems(pod: str, container: Json) -> Iterator[PodProblem]:
    """Yield the problem that the pod that waits for the target reports on its timeout."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    for ended in (each["terminated"] for each in states if each.get("terminated")):
        if ended.get("exitCode"):
            text = _one_line(ended.get("message")).removeprefix("error: ")
            yield PodProblem(pod, "release", f"the target (deployment.target) is {text}", 0.0)
            return


def _lacks_shell(container: Json, message: str) -> bool:
    """Return whether a rank did not start because its image has no shell."""
    return container.get("name") == RANK_POD and NO_PROGRAM in message


def _crash_text(pod: str, container: Json) -> str:
    ended = (container.get("lastState") or {}).get("terminated") or {}
    reason = ended.get("reason", "Error")
    termination_message = _one_line(ended.get("message"))
    message = f": {termination_message}" if termination_message else ""
    remedy = (
        "raise its memory (deployment.pods)" if reason == "OOMKilled" else "see its previous log"
    )
    if _lacks_shell(container, termination_message):
        remedy = NEEDS_SHELL
    return (
        f"pod {pod} has crashed {container['restartCount']} times, last with {reason}, exit code "
        f"{ended.get('exitCode', '?')}{message}; {remedy}"
    )


def deployment_problems(deployment: Json) -> Iterator[PodProblem]:
    """Yield the problems that keep a Deployment from creating pods."""
    name = deployment["metadata"]["name"]
    if has_condition(deployment, "ReplicaFailure"):
        condition = conditions_of(deployment)["ReplicaFailure"]
        message = _one_line(condition.get("message"))
        line = f"Deployment {name} cannot create its pods: {condition.get('reason')}: {message}"
        yield PodProblem(name, "ReplicaFailure", f"{line}; {_remedy(message)}", CREATE_S)


def set_problem(event: Json) -> PodProblem:
    """Return the problem that keeps a StatefulSet from creating pods, from its Event. Unlike a
    Deployment, it has no condition for it."""
    name, message = event["involvedObject"]["name"], _one_line(event.get("message"))
    line = f"StatefulSet {name} cannot create its pods: {message}; {_remedy(message)}"
    return PodProblem(name, "FailedCreate", line, CREATE_S)


def rule_remedy(message: str) -> str:
    """Return the remedy if the refusal names a rule (a policy or a webhook); else empty."""
    return RULE_REMEDY if any(each in message for each in DENIALS) else ""


def _remedy(message: str) -> str:
    if "exceeded quota" in message or "must specify" in message:
        return "raise the namespace's ResourceQuota, or lower the pods' requests (deployment.pods)"
    if "PodSecurity" in message:
        return "the namespace's Pod Security level is too strict for these pods"
    if "LimitRange" in message or "per Container" in message or "per Pod" in message:
        return "the namespace's LimitRange does not allow these requests"
    return rule_remedy(message) or "see the events of its ReplicaSet"


def _one_line(message: str | None) -> str:
    return one_line(message or "")
