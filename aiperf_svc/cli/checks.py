"""Checks of a config beyond its models: what its workload and this machine know."""

import os
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from aiperf_svc.adapters.datasets.tokenizers import existing_path
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.endpoint import Tls
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.tokenizer import is_path
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.workload import NeededFile


def config_problems(config: Config) -> list[Problem]:
    """Return the problems of a config that do not depend on where it is run."""
    return workload_of(config).config_problems(config)


def cluster_problems(config: Config) -> list[Problem]:
    """Return the problems of a config that is run on a cluster."""
    workload = workload_of(config)
    return workload.config_problems(config) + workload.cluster_problems(config)


def local_problems(config: Config, environ: Mapping[str, str] = os.environ) -> list[Problem]:
    """Return the problems of running the config on this machine."""
    needs = workload_of(config).local_needs(config)
    found = [problem for file in needs.files for problem in _file_problems(file)]
    if not found and needs.authorities is not None:
        found += _authority_problems(needs.authorities)
    found += [
        Problem(key, "needs another package: pip install 'aiperf-svc[media]'")
        for key, module in needs.modules
        if find_spec(module) is None
    ]
    if is_path(needs.tokenizer) and existing_path(needs.tokenizer) is None:
        text = "no such file; expected a tokenizer.json or a folder that holds one"
        found.append(Problem("tokenizer.name", f"{needs.tokenizer!r}: {text}"))
    for key, name, remedy in needs.variables:
        if not environ.get(name):
            text = f"the environment variable {name!r} is not set"
            found.append(Problem(key, text + (f"; {remedy}" if remedy else "")))
    found += _artifact_problems(config.artifacts, environ)
    path = needs.path if needs.path is not None else environ.get("PATH")
    for name, remedy in needs.programs:
        if shutil.which(name, path=path) is None:
            text = f"needs {name}, which is not on this machine; {remedy}"
            found.append(Problem("workload.kind", f"{config.kind}: {text}"))
    return found + list(needs.problems)


def _file_problems(file: NeededFile) -> list[Problem]:
    path, text = Path(file.path), ""
    if path.is_dir() and not file.may_be_folder:
        or_pool = " (or kind random_pool)" if file.key == "dataset.file" else ""
        text = f"is a folder; expected a file{or_pool}"
    elif path.is_dir():
        pass
    elif not path.is_file():
        text = "no regular file" if path.exists() else "no such file"
    elif not os.access(path, os.R_OK):
        text = "not readable by this user"
    return [Problem(file.key, f"{file.path!r}: {text}")] if text else []


def _authority_problems(tls: Tls) -> list[Problem]:
    from aiperf_svc.adapters.inference.resolved_target import tls_context

    try:
        tls_context(tls)
    except ConfigError as error:
        key, _, text = str(error).partition(": ")
        return [Problem(key, text)]
    return []


def _artifact_problems(artifacts: Artifacts, environ: Mapping[str, str]) -> list[Problem]:
    """Return what this machine lacks to upload the results, and to file them in trackers."""
    found = []
    if artifacts.s3 is not None:
        if not uploads.has_library():
            text = f"needs the package {uploads.LIBRARY!r}: {uploads.INSTALL}"
            found.append(Problem("artifacts.s3", text))
        if missing := uploads.missing_keys(environ):
            text = f"{' and '.join(missing)}: not set in the environment; the upload needs them"
            found.append(Problem("artifacts.s3", text))
    return found + tracker_problems(artifacts, environ)


def tracker_problems(artifacts: Artifacts, environ: Mapping[str, str]) -> list[Problem]:
    """Return what this machine lacks to file the run in the trackers that its config names."""
    if artifacts.mlflow is None and artifacts.wandb is None:
        return []
    from aiperf_svc.adapters.trackers.sending import problems

    return [Problem(key, text) for key, text in problems(artifacts, environ)]
