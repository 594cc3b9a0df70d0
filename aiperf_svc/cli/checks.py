"""Checks of a config beyond its models: what metrics, endpoints or this machine know."""

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from aiperf_svc.adapters.datasets.tokenizers import existing_path, is_path
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import Dataset, DatasetKind
from aiperf_svc.config.endpoint import CUSTOM, Endpoint
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.target import HOST
from aiperf_svc.core.endpoints.base import extra_input_problems
from aiperf_svc.core.endpoints.custom import custom_problems
from aiperf_svc.core.endpoints.paths import other_api
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.domain.errors import ConfigError

VISIBLE = re.compile(r"[!-~]*")
"""Characters of a URL."""


def config_problems(config: BenchmarkConfig) -> list[Problem]:
    """Return the problems of a config that do not depend on where it is run."""
    lines = _slo_problems(config)
    if config.endpoint.type in CUSTOM:
        lines += custom_problems(config.endpoint)
    else:
        lines += extra_input_problems(endpoint_of(config.endpoint), config.endpoint)
    found = []
    for line in lines:
        key, _, text = line.partition(": ")
        found.append(Problem(key, text))
    endpoint = config.endpoint
    for key in endpoint.secrets_in_clear:
        text = "would be kept in clear in the results' config.yaml; a key is sent by --api-key "
        text += "or endpoint.api_key_env, in the header that --api-key-header or "
        text += "endpoint.api_key_header names"
        found.append(Problem(key, text))
    for url in endpoint.all_urls:
        found += _url_problems(url) or _api_problems(url, endpoint)
    return found


def _slo_problems(config: BenchmarkConfig) -> list[str]:
    """Return one line for each problem of the SLO. The catalog of metrics imports numpy, which
    takes a tenth of a second, so it is only imported if there are objectives."""
    slo = config.slo
    if not slo.objectives and not slo.goodput and not slo.goodput_tiers:
        return []
    from aiperf_svc.core.results.slo import check_slo

    return check_slo(
        slo, is_streaming=config.endpoint.streaming, is_open_loop=config.load.is_open_loop
    )


def local_problems(
    config: BenchmarkConfig, environ: Mapping[str, str] = os.environ
) -> list[Problem]:
    """Return the problems of running the config on this machine."""
    found = []
    files = {
        "dataset.file": config.dataset.file,
        "endpoint.tls.ca_file": config.endpoint.tls.ca_file,
    }
    for key, name in files.items():
        if name is None:
            continue
        is_pool = key == "dataset.file" and config.dataset.kind is DatasetKind.RANDOM_POOL
        if Path(name).is_dir() and not is_pool:
            or_pool = " (or kind random_pool)" if key == "dataset.file" else ""
            found.append(Problem(key, f"{name!r}: is a folder; expected a file{or_pool}"))
        elif Path(name).is_dir():
            continue
        elif not Path(name).is_file():
            is_there = Path(name).exists()
            text = "no regular file" if is_there else "no such file"
            found.append(Problem(key, f"{name!r}: {text}"))
        elif not os.access(name, os.R_OK):
            found.append(Problem(key, f"{name!r}: not readable by this user"))
    if not found and config.endpoint.tls.ca_file:
        from aiperf_svc.adapters.inference.resolved_target import tls_context

        try:
            tls_context(config.endpoint.tls)
        except ConfigError as error:
            key, _, text = str(error).partition(": ")
            found.append(Problem(key, text))
    found += media_problems(config.dataset)
    tokenizer = config.tokenizer.name or ""
    if is_path(tokenizer) and existing_path(tokenizer) is None:
        text = f"{tokenizer!r}: no such file; expected a tokenizer.json or a folder that holds one"
        found.append(Problem("tokenizer.name", text))
    variable = config.endpoint.api_key_env
    if variable is not None and not environ.get(variable):
        text = f"the environment variable {variable!r} is not set; set it, or use --api-key"
        found.append(Problem("endpoint.api_key_env", text))
    variable = config.telemetry.key_env
    if variable is not None and not environ.get(variable):
        text = f"the environment variable {variable!r} is not set"
        found.append(Problem("telemetry.key_env", text))
    if config.artifacts.s3 is not None:
        if not uploads.has_library():
            text = f"needs the package {uploads.LIBRARY!r}: {uploads.INSTALL}"
            found.append(Problem("artifacts.s3", text))
        if missing := uploads.missing_keys(environ):
            text = f"{' and '.join(missing)}: not set in the environment; the upload needs them"
            found.append(Problem("artifacts.s3", text))
    found += tracker_problems(config.artifacts, environ)
    kind = config.deployment.target.kind
    if kind not in ("none", "mock") and urlsplit(config.endpoint.url).hostname == HOST:
        text = f"{config.endpoint.url!r} is the stack's own {kind} server, which only a cluster "
        found.append(Problem("endpoint.url", text + "runs; name a running server with --url"))
    return found


def media_problems(dataset: Dataset) -> list[Problem]:
    """Return what this machine lacks to make the pictures and sounds of synthetic prompts."""
    images, sounds = dataset.images, dataset.sounds
    needed = [
        ("dataset.images.format", "PIL", images.number and images.format != "png"),
        ("dataset.images.folder", "PIL", images.number and images.is_scaled),
        ("dataset.sounds.format", "soundfile", sounds.number and sounds.format != "wav"),
    ]
    return [
        Problem(key, "needs another package: pip install 'aiperf-svc[media]'")
        for key, module, is_needed in needed
        if is_needed and find_spec(module) is None
    ]


def tracker_problems(artifacts: Artifacts, environ: Mapping[str, str]) -> list[Problem]:
    """Return what this machine lacks to file the run in the trackers that its config names."""
    if artifacts.mlflow is None and artifacts.wandb is None:
        return []
    from aiperf_svc.adapters.trackers.sending import problems

    return [Problem(key, text) for key, text in problems(artifacts, environ)]


def _api_problems(url: str, endpoint: Endpoint) -> list[Problem]:
    other = other_api(urlsplit(url).path, endpoint)
    if not other:
        return []
    text = f"{{endpoint.url}}: {url!r} is of the {other} API; expected {{endpoint.type}} {other}, "
    return [Problem("", f"{text}or a URL without this path", names_keys=True)]


def _url_problems(url: str) -> list[Problem]:
    if not VISIBLE.fullmatch(url):
        text = "expected no spaces and ASCII only (%20 in a path, xn-- in a host's name)"
        return [Problem("endpoint.url", f"{url!r}: {text}")]
    try:
        parts = urlsplit(url)
    except ValueError:
        text = "expected an address such as http://host:8000 or http://[::1]:8000"
        return [Problem("endpoint.url", f"{url!r}: {text}")]
    if parts.password or parts.username:
        text = "holds a name or password, which would be kept in clear in the results; "
        return [Problem("endpoint.url", text + "use --api-key")]
    try:
        has_port = parts.port != 0
    except ValueError:
        has_port = False
    if not has_port:
        return [Problem("endpoint.url", f"{url!r}: expected a port from 1 to 65,535")]
    if not parts.hostname:
        return [Problem("endpoint.url", f"{url!r}: names no host; expected http://host:port")]
    if parts.query or parts.fragment:
        return [Problem("endpoint.url", f"{url!r}: expected no ? or # after the path")]
    return []
