"""The requests for the stacks of a session: one for each target, cluster, shape or trial. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiperf_svc.config.clusters import CLUSTERS_KEY, NamedCluster
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.load_config import target_configs
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.footprint import Footprint, check_limits, of_one_stack, of_stacks
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.runner.parts import Expansion, Member, Work, expand
from aiperf_svc.runner.stack.request import WORKLOAD_IMAGE, StackRequest, secrets_from
from aiperf_svc.workloads.previews import summary
from aiperf_svc.workloads.previews.shape_lines import changed_keys
from aiperf_svc.workloads.shapes import max_parallel

Requests = Mapping[str, StackRequest]
"""The request of each member, by its name."""


def member_requests(request: StackRequest, clusters: Sequence[NamedCluster] = ()) -> Requests:
    """Return the request for each target in each cluster. The name of its stack ends with that of
    the member. One target in one cluster has the request itself. Raises ConfigError."""
    if clusters and (request.context or request.kubeconfig):
        raise ConfigError(f"--context, --kubeconfig: {CLUSTERS_KEY} names the clusters")
    in_clusters = {each.short: _in_cluster(request, each) for each in clusters} or {"": request}
    found = {
        "-".join(filter(None, (cluster, target))): own
        for cluster, placed in in_clusters.items()
        for target, own in _of_targets(placed).items()
    }
    if len(found) == 1:
        return found
    members = {
        name: replace(own, stack=f"{request.stack}-{name}", is_joint=True)
        for name, own in found.items()
    }
    for each in members.values():
        check_stack_name(each.stack)
    return members


def _in_cluster(request: StackRequest, named: NamedCluster) -> StackRequest:
    settings = dict(request.settings)
    settings["config"] = {k: v for k, v in settings["config"].items() if k != CLUSTERS_KEY}
    return replace(request, settings=settings, kubeconfig=named.kubeconfig, context=named.context)


def _of_targets(request: StackRequest) -> Requests:
    targets = target_configs(request.config)
    if not targets:
        return {"": request}
    check_namespace(request.config.deployment, "targets")
    return {
        target.name: replace(
            request,
            config=target.config,
            secrets={**secrets_from(target.config, request.environ), **request.secrets},
        )
        for target in targets
    }


def expand_requests(requests: Requests) -> Expansion:
    """Return the parts of the stacks. Raises ConfigError."""
    has_targets = len({id(request.config) for request in requests.values()}) > 1
    members = [
        Member(
            name=name,
            where=_where(request, is_target=has_targets),
            config=_with_rank_image(request),
            trials=request.members,
        )
        for name, request in requests.items()
    ]
    contexts = {request.context for request in requests.values()}
    expansion = expand(members, "cluster", kind="clusters" if len(contexts) > 1 else "targets")
    if expansion.is_split:
        check_namespace(expansion.first.config.deployment, "experiment.parallel")
    return expansion


def _with_rank_image(request: StackRequest) -> Config:
    """Return the config with the workload image of the environment, as in pods and results."""
    tool, image = request.config.tool, request.environ.get(WORKLOAD_IMAGE)
    return request.config if tool is None or not image else tool.with_image(image)


def total_footprint(requests: Requests, expansion: Expansion) -> Footprint:
    """Return the peak footprint of all stacks together, and its duration. Raises ConfigError if it
    exceeds `deployment.limits`."""
    first, *_ = requests.values()
    is_in_turn = expansion.is_in_turn or expansion.is_driven
    stacks = [
        [of_one_stack(found)] if is_in_turn else found
        for found in ([plan.footprint for plan in each.plans] for each in requests.values())
    ]
    found = of_stacks(stacks, at_once=1 if is_in_turn else max_parallel(first.at_once))
    check_limits(first.config.deployment.limits, found)
    return found


def _where(request: StackRequest, *, is_target: bool) -> str:
    inference = request.plan.config.inference if is_target else None
    url = inference.endpoint.url if inference is not None else ""
    return " ".join(filter(None, (request.context, url)))


def check_namespace(deployment: Deployment, key: str) -> None:
    """Raise ConfigError if several stacks in one cluster, because of `key`, would each create the
    same namespace."""
    space = deployment.namespace
    if space.mode == "create":
        raise ConfigError(
            f"deployment.namespace: several stacks ({key}) cannot all create {space.name}; create "
            "it before and use mode: existing, or leave it out"
        )


def part_request(request: StackRequest, expansion: Expansion, work: Work) -> StackRequest:
    """Return the request for the stack of one part of a member, or for the stack that its parts
    share. Raises ConfigError."""
    own = replace(request, folder=work.folder, run=work.run, is_resumed=work.is_resumed)
    if work.trial is not None:
        return replace(own, config=work.config)
    if not expansion.is_split:
        return replace(own, finished=work.finished)
    # The stack runs all trials of its shape, so the request has its plan.
    number = work.part.round
    stack = f"{request.stack}-{number}"
    check_stack_name(stack)
    return replace(own, stack=stack, only_shape=number, known_shapes=request.all_shapes)


def several_lines(expansion: Expansion, requests: Requests) -> str:
    """Describe the stacks of the members, and how each differs from the first one."""
    first, *_ = requests.values()
    lines = [f"the same for each of {len(requests)} {expansion.kind}, except as listed:"]
    for member in expansion.members:
        request = requests[member.name]
        lines.append(f"    {request.stack} ({member.where}); {summary.totals_line(request.plan)}")
        if request.config is not first.config:
            changed = changed_keys(first.plan, request.plan)
            lines += [f"      {each}" for each in changed if each.key != "endpoint.url"]
    lines.append(f"  all together: {total_footprint(requests, expansion).text}")
    return "\n".join(lines)
