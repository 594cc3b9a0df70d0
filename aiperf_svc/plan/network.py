"""The NetworkPolicies of a stack, derived from the port map.

Everything that is not listed here is denied to the stack's pods. Policies see the pods at both
ends, never a Service's address, so ports are those of pods, and labels or ranges select peers.
Policies do not apply to pods in their node's network, not even as sources.
"""

import ipaddress
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import RANK_POD
from aiperf_svc.config.target import HOST, TargetPods
from aiperf_svc.config.telemetry import ClusterExporters
from aiperf_svc.config.urls import address_of
from aiperf_svc.config.workload import Config
from aiperf_svc.plan.pods import PodPlan
from aiperf_svc.plan.release import READINESS
from aiperf_svc.plan.topology import Topology
from aiperf_svc.protocol.ports import BOUND_BY, CONNECTED_BY, Port
from aiperf_svc.protocol.services import Service

PREFLIGHT = "preflight"
"""Component of the pod with which the runner checks the connection to the target."""
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
"""Label of Prometheus pods, by its operator and by its chart."""
DNS_PORTS = (53, 5353)
"""Ports of DNS servers. 5353 is the pod's port if a cluster's DNS runs without privileges."""
HTTPS_PORT = 443


class StackPods(msgspec.Struct, frozen=True, tag=True):
    """Peers that are pods of this stack, by component."""

    components: tuple[str, ...]


class NamespacePods(msgspec.Struct, frozen=True, tag=True):
    """Peers that are pods of a namespace; None: the stack's own. No labels: all of its pods."""

    namespace: str | None
    labels: dict[str, str] = {}


class LabelledPods(msgspec.Struct, frozen=True, tag=True):
    """Peers that are pods with these labels, in any namespace."""

    labels: dict[str, str]


class ReleasePods(msgspec.Struct, frozen=True, tag=True):
    """Pods of the release that is the target: the pods in the stack's namespace that are not this
    tool's."""

    labels: dict[str, str] = {}
    is_labelled: bool = False
    """Whether they have the stack's label. In a shared namespace only that label or `labels`
    identify them."""


class Range(msgspec.Struct, frozen=True, tag=True):
    """Peers in an address range."""

    cidr: str


Peer = StackPods | NamespacePods | LabelledPods | ReleasePods | Range


class Rule(msgspec.Struct, frozen=True):
    """Rule that allows some peers on some ports. No peers means all, no ports means all."""

    peers: tuple[Peer, ...] = ()
    ports: tuple[int, ...] = ()
    protocols: tuple[str, ...] = ("TCP",)


class Policy(msgspec.Struct, frozen=True):
    """Allowed traffic of the pods of some components; no components means the whole stack."""

    name: str
    components: tuple[str, ...]
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    of_release: ReleasePods | None = None
    """The pods of a release. They replace `components`."""


Policies = tuple[tuple[Policy, ...], tuple[str, ...]]
"""Policies, and notes for reviewers."""


def plan_policies(
    config: Config,
    topology: Topology,
    pods: tuple[PodPlan, ...],
    of_kind: Callable[[set[str]], tuple[list[Policy], list[str]]],
) -> Policies:
    """Return the policies, and notes for reviewers. `pods` includes target and deadline. `of_kind`
    returns the policies of the kind of benchmark, given the pods in their node's network."""
    if not config.deployment.network_policies:
        return (), ("no NetworkPolicies: deployment.network_policies is off",)
    hosted = {pod.name for pod in pods if pod.placement.host_network}
    own, notes = of_kind(hosted)
    policies = [
        *usual_policies(config),
        *_between_services(config, topology, hosted),
        *own,
    ]
    uploads, upload_notes = upload_policies(config, topology)
    policies += uploads
    notes += upload_notes
    notes += [
        f"{name} uses its node's network: no NetworkPolicy applies to it" for name in sorted(hosted)
    ]
    notes += [
        f"{pod.name} is also in network {network.name}, to which no NetworkPolicy applies"
        for pod in pods
        for network in pod.placement.networks
    ]
    return tuple(policies), tuple(notes)


def usual_policies(config: Config) -> tuple[Policy, Policy]:
    """Return the policies of every stack: DNS for all pods, and the deadline's."""
    dns = Rule(ports=DNS_PORTS, protocols=("UDP", "TCP"))
    return (
        Policy("default", (), egress=(dns,)),
        Policy("deadline", ("deadline",), egress=(api_server_rule(config),)),
    )


def api_server_rule(config: Config) -> Rule:
    """Return the rule for the API server, whose port is unknown: 443, 6443, 8443, 16443, …"""
    return Rule(tuple(map(Range, config.deployment.api_server_cidrs)))


def target_policies(
    config: BenchmarkConfig, topology: Topology, calls_api: bool, hosted: set[str]
) -> tuple[list[Policy], list[str]]:
    """Return the policies for connections to an inference server, and notes for reviewers.
    `calls_api`: pods of a release call the API server. `hosted` pods use their node's network;
    `target` stands for those of a release."""
    clients, reader = _clients(config, topology), _pod_of(Service.RECORDS_MANAGER, topology)
    to_targets, notes = _to_targets(config, clients, hosted)
    policies = [Policy("to-target", clients, egress=to_targets)]
    pages, page_notes = _to_pages(config, reader, hosted)
    if pages:
        policies.append(Policy("to-metrics", (reader,), egress=pages))
    if config.deployment.target.kind == "release":
        policies += _release(config, clients, calls_api, hosted)
    elif config.deployment.target.kind != "none":
        policies.append(_target(config, clients, reader, hosted))
    downloads, download_notes = _downloads(config, topology)
    return [*policies, *downloads], [*notes, *page_notes, *download_notes]


def _clients(config: BenchmarkConfig, topology: Topology) -> tuple[str, ...]:
    """Return the pods that connect to the port of the target's requests: those that send requests,
    the one that reads its metrics and asks the questions of a quality gate, and the one that calls
    its hooks, if any."""
    others: list[Service] = []
    has_pages = any(pool.port for pool in config.deployment.target.pools.values())
    is_reader = config.telemetry.target or config.quality is not None or has_pages
    others += [Service.RECORDS_MANAGER] if is_reader else []
    others += [Service.TIMING_MANAGER] if config.may_call_hooks else []
    pods = (_pod_of(each, topology) for each in others)
    return (Service.WORKER.value, PREFLIGHT, *dict.fromkeys(pods))


def _pod_of(service: Service, topology: Topology) -> str:
    return next(group.name for group in topology.groups if service in group.services)


def _to_pages(
    config: BenchmarkConfig, reader: str, hosted: set[str]
) -> tuple[tuple[Rule, ...], list[str]]:
    """Allow the pod that reads pages of metrics to reach those that the config names."""
    telemetry, target = config.telemetry, config.deployment.target
    rules, notes = list[Rule](), list[str]()
    if own := _own_pages(config):
        rules.append(Rule(_pods((HOST,), hosted), own))
    for page in telemetry.named_pages:
        is_target = _is_target(config, address_of(page.url).host)
        if is_target and target.kind != "none":
            continue
        if is_target and target.pods:
            # The port of a Service may differ from the port of its pods.
            ports = (address_of(page.url).port,) if target.pods.host_network else ()
            rule, found = Rule(_target_peers(target.pods), ports), list[str]()
        else:
            remedy = f"an address in telemetry.{page.key}"
            rule, found = _server_rule(page.url, who=reader, remedy=remedy)
        rules += [rule] if rule not in rules else []
        notes += [note for note in found if note not in notes]
    rules += map(_to_exporters, telemetry.exporters)
    return tuple(rules), notes


def _to_exporters(exporters: ClusterExporters) -> Rule:
    if not exporters.host_network:
        peer = NamespacePods(exporters.namespace, exporters.labels)
        return Rule((peer,), (exporters.port,))
    hosts = [ipaddress.ip_address(address_of(url).host) for url in exporters.pages]
    return Rule(tuple(Range(f"{h}/{h.max_prefixlen}") for h in hosts), (exporters.port,))


def _is_target(config: BenchmarkConfig, host: str) -> bool:
    return host == address_of(config.endpoint.url).host


def _own_pages(config: BenchmarkConfig) -> tuple[int, ...]:
    """Return the other ports of the stack's own target from which the config reads metrics."""
    target = config.deployment.target
    if target.kind in ("none", "release"):
        return ()
    addresses = (address_of(page.url) for page in config.telemetry.named_pages)
    found = {each.port for each in addresses if _is_target(config, each.host)}
    return tuple(sorted(found - ({target.port} if config.telemetry.target else set())))


class OutsideUrl(msgspec.Struct, frozen=True):
    """A server outside the stack that ranks reach."""

    url: str
    remedy: str
    """Key that narrows the rule to fewer addresses, such as `an address in workload.url`."""


def rank_policies(
    hosted: set[str], outside: tuple[OutsideUrl, ...]
) -> tuple[list[Policy], list[str]]:
    """Allow all traffic between ranks, since tools choose their ports and some traffic has none.
    Also allow connections to the servers outside, if any."""
    between = (Rule(_pods((RANK_POD,), hosted)),)
    rules, notes = list[Rule](), list[str]()
    for each in outside:
        rule, found = _server_rule(each.url, who="ranks", remedy=each.remedy)
        rules.append(rule)
        notes += found
    return [Policy("ranks", (RANK_POD,), ingress=between, egress=(*between, *rules))], notes


def _between_services(config: Config, topology: Topology, hosted: set[str]) -> list[Policy]:
    """Allow the services to connect to the pods that bind ports, each client to its own ports. The
    pod that has the results also serves them."""
    pod_of = {service: g.name for g in topology.groups for service in g.services}
    ingress: dict[str, list[Rule]] = {}
    for (binder, clients), ports in sorted(_connections(topology, pod_of).items()):
        ingress.setdefault(binder, []).append(Rule(_pods(clients, hosted), ports))
    sides = ([n for n in ingress if n not in hosted], [n for n in ingress if n in hosted])
    egress = tuple(
        Rule(
            _pods(tuple(names), hosted),
            tuple(sorted({port for n in names for rule in ingress[n] for port in rule.ports})),
        )
        for names in sides
        if names
    )
    results = ingress.setdefault(pod_of[Service.RECORDS_MANAGER], [])
    results.append(results_rule(config))
    clients = tuple(g.name for g in topology.groups)
    return [
        *([Policy("services", clients, egress=egress)] if egress else []),
        *(Policy(name, (name,), ingress=tuple(rules)) for name, rules in sorted(ingress.items())),
    ]


def _connections(
    topology: Topology, pod_of: dict[Service, str]
) -> dict[tuple[str, tuple[str, ...]], tuple[int, ...]]:
    """Map (binding pod, connecting pods) to ports. Ports with the same clients are one rule."""
    found: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}
    for port, services in CONNECTED_BY.items():
        if port is Port.RAW_DIRECT and topology.raw_route == "proxy":
            continue
        binder = pod_of[BOUND_BY[port]]
        # Services of one pod connect without the network; replicas of a service do not.
        clients = tuple(sorted({pod_of[service] for service in services} - {binder}))
        if clients:
            found[binder, clients] = (*found.get((binder, clients), ()), int(port))
    return found


def results_rule(config: Config) -> Rule:
    """Return the rule that admits readers of the results."""
    peers: tuple[Peer, ...] = tuple(map(Range, config.deployment.results.allow_cidrs))
    if peers and config.deployment.monitoring != "none":
        peers += (LabelledPods(PROMETHEUS),)
    return Rule(peers, (int(Port.RESULTS_API),))


def _target(
    config: BenchmarkConfig, clients: tuple[str, ...], reader: str, hosted: set[str]
) -> Policy:
    target = config.deployment.target
    pages = _own_pages(config)
    return Policy(
        HOST,
        (HOST,),
        ingress=(
            Rule(_pods(clients, hosted), (target.port,)),
            *((Rule(_pods((reader,), hosted), pages),) if pages else ()),
        ),
        egress=(Rule(ports=(HTTPS_PORT,)),) if target.downloads else (),
    )


def _release(
    config: BenchmarkConfig, clients: tuple[str, ...], calls_api: bool, hosted: set[str]
) -> list[Policy]:
    """Return the policies of a release's pods: traffic with each other, from the clients, and with
    the peers in `admit`. All ports are allowed: those behind its Services are unknown."""
    target, within = config.deployment.target, _within_release(config, hosted)
    ingress = (Rule(_pods(clients, hosted)), within)
    egress = [within, Rule(ports=DNS_PORTS, protocols=("UDP", "TCP"))]
    if target.downloads:
        egress.append(Rule(ports=(HTTPS_PORT,)))
    api_server = api_server_rule(config)
    if calls_api:
        egress.append(api_server)
    policies = [
        Policy(HOST if not i else f"{HOST}-{i}", (), ingress, tuple(egress), each)
        for i, each in enumerate(_release_pods(config))
    ]
    return [*policies, Policy(READINESS, (READINESS,), egress=(api_server,))]


def _within_release(config: BenchmarkConfig, hosted: set[str]) -> Rule:
    """Return the rule for the pods of the release and the peers that it admits: all peers if pods
    of the release have their node's address."""
    if HOST in hosted:
        return Rule()
    admitted = (
        NamespacePods(each.namespace, each.labels) for each in config.deployment.target.admit
    )
    return Rule((*_release_pods(config), *admitted))


def _release_pods(config: BenchmarkConfig) -> tuple[ReleasePods, ...]:
    deployment = config.deployment
    if deployment.namespace.mode != "existing":
        return (ReleasePods(),)
    # Templates in its manifests have the stack's label. Pods created by an operator may not.
    pools = (ReleasePods(pool.labels) for pool in deployment.target.pools.values())
    return (ReleasePods(is_labelled=True), *pools)


def _downloads(config: BenchmarkConfig, topology: Topology) -> tuple[list[Policy], tuple[str, ...]]:
    """Allow the pods that use public datasets, tokenizers and tasks to download them."""
    users: set[Service] = set()
    why = []
    if config.dataset.public and not config.dataset.url:
        users.add(Service.DATASET_MANAGER)
        why.append(f"dataset.public: {config.dataset.public}")
    name = config.tokenizer.name
    if is_on_hub(name):
        users |= {Service.DATASET_MANAGER, Service.RECORD_PROCESSOR}
        why.append(f"tokenizer.name: {name}")
    if config.quality is not None and config.quality.lm_eval is not None:
        users.add(Service.RECORDS_MANAGER)
        why.append(f"quality.lm_eval: {' '.join(config.quality.lm_eval.tasks)}")
    pods = tuple(g.name for g in topology.groups if users & set(g.services))
    policies, notes = dataset_policies([config], (_pod_of(Service.DATASET_MANAGER, topology),))
    if users:
        policies.append(Policy("downloads", pods, egress=(Rule(ports=(HTTPS_PORT,)),)))
        notes.append(f"{', '.join(pods)} may reach port 443 anywhere, for {' and '.join(why)}")
    return policies, tuple(notes)


def dataset_policies(
    configs: Sequence[BenchmarkConfig], pods: tuple[str, ...]
) -> tuple[list[Policy], list[str]]:
    """Allow these pods to reach the servers in `dataset.url`, and return notes for reviewers."""
    rules, notes = list[Rule](), list[str]()
    for url in dict.fromkeys(each.dataset.url for each in configs):
        if url is not None:
            remedy = "an address in dataset.url"
            rule, found = _server_rule(url, who=", ".join(pods), remedy=remedy)
            rules.append(rule)
            notes += found
    return [Policy("dataset", pods, egress=tuple(rules))] if rules else [], notes


def is_on_hub(tokenizer: str | None) -> bool:
    """Return whether a tokenizer's name refers to a hub rather than to a file."""
    return tokenizer is not None and not tokenizer.startswith(("/", "."))


def upload_policies(config: Config, topology: Topology) -> tuple[list[Policy], list[str]]:
    """Allow uploads of results to the bucket: for the pod that has them, and for preflight, whose
    pods these policies select in a namespace where the stack already exists."""
    s3 = config.artifacts.s3
    if s3 is None:
        return [], []
    pod = _pod_of(Service.RECORDS_MANAGER, topology)
    url, key = s3.endpoint_url or "https://amazonaws.com", "artifacts.s3.egress_cidrs"
    rule, notes = _server_rule(url, s3.egress_cidrs, who=pod, remedy=key)
    return [Policy("upload", (pod, PREFLIGHT), egress=(rule,))], notes


def _to_targets(
    config: BenchmarkConfig, clients: tuple[str, ...], hosted: set[str]
) -> tuple[tuple[Rule, ...], list[str]]:
    """Allow connections from the clients to each address of the target, as narrowly as its address
    is known in advance."""
    target = config.deployment.target
    if target.kind == "release":
        own = _within_release(config, hosted)
        if HOST in hosted:
            note = "pods of the release use their node's network: no NetworkPolicy applies to them"
            return (own,), [f"{note}, and its clients may reach every address"]
        if is_bare_name(address_of(config.endpoint.url).host) or target.admit:
            return (own,), []
        key = "deployment.target.admit"
        rule, notes = _server_rule(config.endpoint.url, who="workers", remedy=key)
        return (own, rule), notes
    if target.kind != "none":
        return (Rule(_pods((HOST,), hosted), (target.port,)),), []
    who = " and ".join(("workers", *clients[2:]))
    if target.pods:
        port = target.pods.port
        rule = Rule(_target_peers(target.pods), (port,) if port else ())
        note = (
            f"{who} may reach {f'port {port}' if port else 'every port'} of every address, because "
            "the target's pods use their nodes' network"
        )
        return (rule,), [note] if target.pods.host_network else []
    rules, notes = list[Rule](), list[str]()
    for url in config.endpoint.first_hops:
        rule, found = _server_rule(
            url,
            target.egress_cidrs,
            who=who,
            remedy="deployment.target.egress_cidrs",
            pods_remedy="deployment.target.pods",
        )
        rules += [rule] if rule not in rules else []
        notes += [note for note in found if note not in notes]
    return tuple(rules), notes


def _target_peers(pods: TargetPods) -> tuple[Peer, ...]:
    return () if pods.host_network else (NamespacePods(pods.namespace, pods.labels),)


def _server_rule(
    url: str, cidrs: tuple[str, ...] = (), *, who: str, remedy: str, pods_remedy: str = ""
) -> tuple[Rule, list[str]]:
    """Return the rule for a server, and notes for reviewers. `remedy` is the key of address ranges,
    `pods_remedy` the key of pods."""
    host, port, _ = address_of(url)
    if cidrs:
        return Rule(tuple(map(Range, cidrs)), (port,)), []
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return Rule((Range(f"{address}/{address.max_prefixlen}"),), (port,)), []
    labels, pods_remedy = host.split("."), pods_remedy or remedy
    if is_bare_name(host):
        note = f"{who} may reach every pod of their namespace, for {host}"
        return Rule((NamespacePods(None),)), [f"{note}; narrow it with {pods_remedy}"]
    if labels[2:3] == ["svc"]:
        note = f"{who} may reach every pod of namespace {labels[1]}, for {host}"
        return Rule((NamespacePods(labels[1]),)), [f"{note}; narrow it with {pods_remedy}"]
    note = f"{who} may reach port {port} of every address, for {host}; narrow it with {remedy}"
    if len(labels) == 2 and pods_remedy != remedy:
        # A policy applies to the pods behind a Service, whose port may differ.
        note += f", or, if it is Service {labels[0]} of namespace {labels[1]}, with {pods_remedy}"
    return Rule(ports=(port,)), [note]


def is_bare_name(host: str) -> bool:
    """Return whether a host is a name of one label: a Service of the same namespace."""
    return "." not in host and ":" not in host


def _pods(components: tuple[str, ...], hosted: set[str]) -> tuple[Peer, ...]:
    """Return these pods as peers. If one of them uses its node's address, all peers are allowed;
    CURVE and the token still protect the ports."""
    return () if hosted & set(components) else (StackPods(components),)
