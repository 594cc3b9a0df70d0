"""Reads the objects of a release: from a Helm chart, from manifests, or from the config itself.

Pulumi's Kubernetes provider renders charts and kustomizations, without a cluster. A process renders
each source once, so the reviewed plan is the plan that is created.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from aiperf_svc.adapters.pulumi.project import find_program
from aiperf_svc.adapters.pulumi.state import pulumi_home
from aiperf_svc.config.release import ReleaseSource
from aiperf_svc.config.target import Target
from aiperf_svc.config.user_files import read_text_file
from aiperf_svc.config.yaml_files import MAX_BYTES, parse_documents
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.process_environment import without_working_folder
from aiperf_svc.plan.release import NAMESPACE, Rendered

PLUGIN = "pulumi-resource-kubernetes"
PLUGIN_VARIABLES = ("PATH", "PULUMI_HOME")
"""Environment variables that decide where the plugin is found."""
INSTALL = "pulumi plugin install resource kubernetes"
KEY = "deployment.target.from"
TIMEOUT_S = 120.0
"""Timeout of rendering: a chart may have to be downloaded."""
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_PREFIXES = (
    "failed to generate YAML for specified Helm chart: ",
    "failed to create chart from template: ",
    "failed to load chart from temp directory: ",
)


def render_release(
    target: Target, *, base: Path | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[Rendered, ...]:
    """Return the objects of a target of kind release, for each source. Paths are relative to
    `base`, or to the working folder. Raises ConfigError with a one-line reason if a source cannot
    be read or rendered."""
    folder, plugin = str(base or Path.cwd()), plugin_path(environ)
    return tuple(_rendered(each.model_dump_json(), folder, plugin) for each in target.sources)


@functools.lru_cache(maxsize=64)
def _rendered(text: str, base: str, plugin: str) -> Rendered:
    source = ReleaseSource.model_validate_json(text)
    if source.object is not None:
        found: Sequence[Any] = [source.object]
    elif source.manifests is not None:
        path = Path(base, source.manifests).absolute()
        if path.is_dir() and any((path / name).is_file() for name in KUSTOMIZATIONS):
            args = {"directory": str(path)}
            found = _invoke(plugin, "kubernetes:kustomize:directory", args, source.manifests)
        else:
            found = _documents(path, source.manifests)
    chart = _chart_of(source, base)
    if chart:
        args = {"jsonOpts": json.dumps(_helm_options(source, chart))}
        found = _invoke(plugin, "kubernetes:helm:template", args, source.what)
    objects = tuple(_objects(found, source.what))
    return Rendered(what=source.what, objects=objects, chart=chart, has_hooks=source.hooks)


def _chart_of(source: ReleaseSource, base: str) -> str:
    """Return the name or URL of a chart, or the absolute path of a local chart; empty if the source
    is not a chart."""
    if source.chart is None or source.is_remote:
        return source.chart or ""
    return str(Path(base, source.chart).absolute())


def _helm_options(source: ReleaseSource, chart: str) -> Json:
    options: Json = {
        "release_name": source.name,
        "namespace": NAMESPACE,
        "skip_crd_rendering": True,
        "values": source.values,
    }
    if source.is_remote:
        fetched = {"repo": source.repo, "version": source.version}
        return {
            **options,
            "chart": chart,
            "version": source.version,
            "fetch_opts": {key: value for key, value in fetched.items() if value},
        }
    path = Path(chart)
    if not path.exists():
        raise ConfigError(f"{KEY}.chart: there is no {chart}")
    return {**options, "path": str(path.parent), "chart": path.name}


def plugin_path(environ: Mapping[str, str]) -> str:
    """Return the path of the provider's plugin: on PATH, or the newest version that Pulumi has
    installed; empty if there is none."""
    found = shutil.which(PLUGIN, path=environ.get("PATH"))
    if found is not None:
        return found
    plugins = pulumi_home(environ).glob(f"plugins/resource-kubernetes-v*/{PLUGIN}")
    return str(max(plugins, key=_version, default=""))


def _version(path: Path) -> tuple[int, ...]:
    numbers = path.parent.name.rpartition("-v")[2].split(".")
    return tuple(int(each) for each in numbers if each.isdecimal())


def _invoke(plugin: str, token: str, args: Json, what: str) -> Sequence[Any]:
    if not plugin:
        raise ConfigError(
            f"{KEY}: {what} is rendered by Pulumi's Kubernetes provider, which is not installed: "
            f"{INSTALL}"
        )
    wanted = {"provider": plugin, "token": token, "args": args}
    try:
        done = subprocess.run(
            [sys.executable, str(find_program().infra / "render.py")],
            env=without_working_folder(os.environ),
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{KEY}: {what} cannot be rendered: no result after {TIMEOUT_S:g} s"
        ) from error
    if done.returncode:
        # If the plugin itself failed, the last line contains the error.
        reason = done.stderr.strip()
        reason = reason.splitlines()[-1] if reason.startswith("Traceback") else reason
        for prefix in _PREFIXES:
            reason = reason.removeprefix(prefix)
        raise ConfigError(f"{KEY}: {what} cannot be rendered: {one_line(reason, limit=600)}")
    found: Sequence[Any] = json.loads(done.stdout)
    return found


def _documents(path: Path, source: str) -> list[Any]:
    """Return the documents of a YAML file, or of a folder's YAML files sorted by name."""
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix in (".yaml", ".yml", ".json"))
    else:
        files = [path]
    found = []
    for each in files:
        try:
            found += parse_documents(read_text_file(each, MAX_BYTES))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"{KEY}.manifests: cannot read {each}: {why}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{KEY}.manifests: {each}: {one_line(str(error))}") from error
    if not found:
        raise ConfigError(f"{KEY}.manifests: {source} has no YAML files")
    return found


def _objects(documents: Sequence[Any], source: str) -> list[Json]:
    """Return the objects of the documents; Lists are flattened. Raises ConfigError."""
    found: list[Json] = []
    for number, each in enumerate(documents, 1):
        if each is None:
            continue
        if isinstance(each, dict) and str(each.get("kind", "")).endswith("List"):
            items = each.get("items")
            if isinstance(items, list):
                found += _objects(items, source)
                continue
        metadata = each.get("metadata") if isinstance(each, dict) else None
        named = isinstance(metadata, dict) and isinstance(metadata.get("name"), str)
        if not named or not all(isinstance(each.get(key), str) for key in ("apiVersion", "kind")):
            raise ConfigError(
                f"{KEY}: document {number} of {source} is not an object of Kubernetes: expected "
                "apiVersion, kind and metadata.name"
            )
        found.append(each)
    return found
