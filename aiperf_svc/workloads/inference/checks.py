"""Checks of an inference config beyond its models, and the requirements for the local machine."""

from urllib.parse import urlsplit

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import DatasetKind, is_path
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.events import CLUSTER_KINDS, LOCAL_KINDS, OWN_TARGET_KINDS, Kind
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.target import HOST
from aiperf_svc.config.urls import is_loopback, url_problem
from aiperf_svc.core.endpoints.base import extra_input_problems
from aiperf_svc.core.endpoints.custom import custom_problems
from aiperf_svc.core.endpoints.paths import other_api
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.quality import lm_eval
from aiperf_svc.domain.endpoint_types import Feature
from aiperf_svc.workloads.workload import LocalNeeds, NeededFile, NeededProgram, NeededVariable

_QUERY_REMEDY = (
    "; a query belongs to the path of the API "
    "(endpoint.path, --endpoint /v1/chat/completions?api-version=1)"
)


def config_problems(config: BenchmarkConfig) -> list[Problem]:
    """Return the problems of a config that do not depend on the place of its run."""
    lines = _slo_problems(config)
    if config.endpoint.type.has(Feature.CUSTOM):
        lines += custom_problems(config.endpoint)
    else:
        lines += extra_input_problems(endpoint_of(config.endpoint), config.endpoint)
    found = []
    for line in lines:
        key, _, text = line.partition(": ")
        found.append(Problem(key, text))
    endpoint = config.endpoint
    for key in endpoint.secrets_in_clear:
        text = "would be kept in plain text in the results' config.yaml; give a key with "
        text += "--api-key or endpoint.api_key_env, and its header, or ?NAME for the query, with "
        text += "--api-key-header or endpoint.api_key_header"
        found.append(Problem(key, text))
    for url in endpoint.all_urls:
        if problem := url_problem(url, remedy="use --api-key", of_query=_QUERY_REMEDY):
            found.append(Problem("endpoint.url", problem))
        else:
            found += _api_problems(url, endpoint)
    return found


def _slo_problems(config: BenchmarkConfig) -> list[str]:
    """Return one line for each problem of the SLO. The metric catalog imports numpy, which takes a
    tenth of a second, so it is only imported if there are objectives."""
    slo = config.slo
    if not slo.objectives and not slo.goodput and not slo.goodput_tiers:
        return []
    from aiperf_svc.core.results.slo import check_slo

    return check_slo(
        slo, is_streaming=config.endpoint.streaming, is_open_loop=config.load.is_open_loop
    )


def cluster_problems(config: BenchmarkConfig) -> list[Problem]:
    """Return the problems of a run on a cluster."""
    found = _event_problems(config, CLUSTER_KINDS, "a stack")
    host = urlsplit(config.endpoint.url).hostname or ""
    if is_loopback(host):
        text = f"{config.endpoint.url!r}: in a pod, this is the pod itself; use an address "
        found.append(Problem("endpoint.url", text + "that the cluster's pods can reach"))
    if config.telemetry.nvml:
        text = f"{', '.join(config.telemetry.nvml)}: the GPUs of the services' own machine, not "
        text += "those of the target's nodes; run `aiperf-svc nvml-exporter --host 0.0.0.0` there "
        found.append(
            Problem("telemetry.nvml", text + "and name its page in telemetry.gpu_telemetry")
        )
    files = {
        "dataset.file": config.dataset.file,
        "quality.file": config.quality.file if config.quality else None,
        "dataset.images.folder": config.dataset.images.folder,
        "dataset.sounds.folder": config.dataset.sounds.folder,
        "endpoint.tls.ca_file": config.endpoint.tls.ca_file,
        "tokenizer.name": config.tokenizer.name if is_path(config.tokenizer.name or "") else None,
    }
    for key, name in files.items():
        if name is not None and config.deployment.image.name is None:
            text = f"{name!r}: a file of this machine, which pods cannot read; "
            if key == "endpoint.tls.ca_file":
                text += "give its text in endpoint.tls.ca, or "
            text += "build an image that holds it and name it in deployment.image.name"
            found.append(Problem(key, text))
    return found


FOLDERS = (DatasetKind.RANDOM_POOL, DatasetKind.WEKA_TRACE, DatasetKind.OTEL_TRACE)
"""Kinds whose file may also be a folder of files."""


def local_needs(config: BenchmarkConfig) -> LocalNeeds:
    """Return the requirements of a run on this machine."""
    dataset, tls = config.dataset, config.endpoint.tls
    files = {
        "dataset.file": (dataset.file, dataset.kind in FOLDERS),
        "quality.file": (config.quality.file if config.quality else None, False),
        "endpoint.tls.ca_file": (tls.ca_file, False),
    }
    variables = {
        "endpoint.api_key_env": (config.endpoint.api_key_env, "set it, or use --api-key"),
        "telemetry.key_env": (config.telemetry.key_env, ""),
    }
    lm_eval_program = NeededProgram(lm_eval.PROGRAM, lm_eval.REMEDY, "quality.lm_eval")
    problems = _event_problems(config, LOCAL_KINDS, "a local run")
    if config.scaling is not None:
        text = "the replicas of a server are watched by the runner of a stack (aiperf-svc run "
        text += "STACK); leave it out in a local run"
        problems.insert(0, Problem("scaling", text))
    return LocalNeeds(
        files=tuple(
            NeededFile(key, path, may_be_folder)
            for key, (path, may_be_folder) in files.items()
            if path is not None
        ),
        authorities=tls if tls.ca_file else None,
        modules=_modules(config),
        programs=(lm_eval_program,) if config.quality and config.quality.lm_eval else (),
        tokenizer=config.tokenizer.name or "",
        variables=tuple(
            NeededVariable(key, name, remedy)
            for key, (name, remedy) in variables.items()
            if name is not None
        ),
        problems=(*_target_problems(config), *problems),
    )


def _modules(config: BenchmarkConfig) -> tuple[tuple[str, str, str], ...]:
    """Return the modules for GPUs, and for pictures and sounds of synthetic prompts."""
    images, sounds = config.dataset.images, config.dataset.sounds
    needed = [
        ("dataset.images.format", "PIL", "media", images.number and images.format != "png"),
        ("dataset.images.folder", "PIL", "media", images.number and images.is_scaled),
        ("dataset.sounds.format", "soundfile", "media", sounds.number and sounds.format != "wav"),
        ("telemetry.nvml", "pynvml", "nvml", config.telemetry.nvml),
    ]
    return tuple((key, module, extra) for key, module, extra, is_needed in needed if is_needed)


def _event_problems(config: BenchmarkConfig, kinds: tuple[Kind, ...], where: str) -> list[Problem]:
    """Return the events that `where` does not support."""
    keys = ("process",) if kinds is CLUSTER_KINDS else ("deployment", "pool")
    found = [
        Problem(f"events.{number}.{key}", f"{value!r}: {where} has none")
        for number, event in enumerate(config.events)
        for key in keys
        if (value := getattr(event, key)) is not None
    ]
    if kinds is CLUSTER_KINDS:
        found += _stack_event_problems(config)
    return found + [
        Problem(f"events.{number}.do", f"{event.do}: {where} can do {', '.join(kinds)}")
        for number, event in enumerate(config.events)
        if event.do not in kinds
    ]


def _stack_event_problems(config: BenchmarkConfig) -> list[Problem]:
    """Return the events whose subject the stack lacks, or that it cannot carry out."""
    deployment, found = config.deployment, []
    replicas = deployment.target.replicas
    has_server = deployment.target.kind not in ("none", "release")
    for number, event in enumerate(config.events):
        key = f"events.{number}.do"
        pools = deployment.target.pools
        if event.pool is not None and event.pool not in pools:
            existing = f"it has {', '.join(pools)}" if pools else "it has none"
            text = f"{event.pool!r}: no pool of deployment.target; {existing}"
            found.append(Problem(f"events.{number}.pool", text))
        is_named = event.deployment is not None or event.pool is not None
        if not is_named and not has_server:
            text = "needs deployment: NAME of one of the stack's Deployments, or pool"
            if deployment.target.kind == "none":
                text = "there is no Deployment to act on: set deployment.target.kind, or "
                text += "deployment: NAMESPACE/NAME and foreign: true"
            if event.do in OWN_TARGET_KINDS:
                text = "the stack must run the target: set deployment.target.kind to mock, vllm or "
                text += "custom"
            found.append(Problem(key, f"{event.do}: {text}"))
        if event.do == "scale" and not is_named and has_server:
            if event.replicas == replicas:
                text = f"{replicas}: the target has as many at that time"
                found.append(Problem(f"events.{number}.replicas", text))
            if event.duration is None:
                replicas = event.replicas or 0
        if event.do == "cut" and not deployment.network_policies:
            text = "needs the stack's NetworkPolicies, and deployment.network_policies is false"
            found.append(Problem(key, f"{event.do}: {text}"))
    return found


def _target_problems(config: BenchmarkConfig) -> tuple[Problem, ...]:
    kind = config.deployment.target.kind
    if kind in ("none", "mock") or urlsplit(config.endpoint.url).hostname != HOST:
        return ()
    text = f"{config.endpoint.url!r} is the stack's own {kind} server, which only a cluster "
    return (Problem("endpoint.url", text + "runs; name a running server with --url"),)


def _api_problems(url: str, endpoint: Endpoint) -> list[Problem]:
    other = other_api(urlsplit(url).path, endpoint)
    if not other:
        return []
    text = f"{{endpoint.url}}: {url!r} is of the {other} API; expected {{endpoint.type}} {other}, "
    return [Problem("", f"{text}or a URL without this path", names_keys=True)]
