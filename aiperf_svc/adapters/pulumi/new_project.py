"""Creates a Pulumi project in a user's folder: the program, stack files, and a pin to this version.

The project has the name of the built-in program, so `pulumi` and `aiperf-svc` use the same stacks.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiperf_svc import __version__
from aiperf_svc.config.load_config import own_stack_path
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

_PULUMI = """\
name: aiperf
description: Benchmarks of inference services and clusters, as code
stackConfigDir: stacks
runtime:
  name: python
  options:
    toolchain: pip
    virtualenv: .venv
options:
  # A namespace that deleted itself must not look unchanged.
  refresh: always
config:
  # Every object is made by a provider that the program configures.
  pulumi:disable-default-providers:
    value: [kubernetes]
"""
_PROGRAM = '''\
"""Creates the benchmark that the selected stack file in stacks/ declares."""

from aiperf_svc.stack import declare_stack

declare_stack()
'''
_README = """\
# Benchmarks

`requirements.txt` pins aiperf-svc. Each file in `stacks/` is a benchmark: set its `endpoint`.
`run` also needs the Pulumi CLI, a kubeconfig, and in AIPERF_IMAGE the image of `Containerfile`.

    python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && . .venv/bin/activate
    aiperf-svc validate                 # checks all stack files
    aiperf-svc preview {stack}      # pods, cost and egress; needs no cluster
    aiperf-svc run {stack}          # creates the stack, measures, fetches the results, removes it
    pulumi stack init {stack} && pulumi up      # or with plain Pulumi
"""
_IMAGE = """\
# The image of the services, for a registry that the cluster can pull from:
#   docker build -f Containerfile -t registry.example/aiperf-svc:{version} .
#   docker push registry.example/aiperf-svc:{version}
#   export AIPERF_IMAGE=registry.example/aiperf-svc:{version}
# BASE is any image with Python 3.11 or later; name it with its digest, NAME@sha256:DIGEST.
ARG BASE=docker.io/library/python:3.12-slim-bookworm
FROM ${{BASE}}
ARG PACKAGE=aiperf-svc[s3,media,nvml]=={version}
RUN python3 -m venv /opt/aiperf \\
 && /opt/aiperf/bin/pip install --no-cache-dir "${{PACKAGE}}"
ENV PATH=/opt/aiperf/bin:/usr/local/bin:/usr/bin:/bin \\
    PYTHONPATH=/opt/aiperf/app \\
    PYTHONDONTWRITEBYTECODE=1 \\
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/opt/aiperf/bin/aiperf-svc"]
"""
_SCHEMA_LINE = "# yaml-language-server: $schema=schema.json"


def project_files(stacks: Sequence[str], schema: Mapping[str, object]) -> dict[str, str]:
    """Return the path and text of each file of a project. `stacks` are names of built-in stack
    files; the manifests that they reference are included. `schema` is the schema of a stack file.
    Raises ConfigError."""
    files = {
        "Pulumi.yaml": _PULUMI,
        "__main__.py": _PROGRAM,
        "requirements.txt": f"aiperf-svc[stack]=={__version__}\n",
        "Containerfile": _IMAGE.format(version=__version__),
        "README.md": _README.format(stack=stacks[0]),
        ".gitignore": ".venv/\n__pycache__/\nartifacts/\n",
        "stacks/schema.json": json.dumps(schema, ensure_ascii=False) + "\n",
    }
    for name in stacks:
        path = own_stack_path(name)
        _, _, text = path.read_text().partition("\n")
        files[f"stacks/{path.name}"] = f"{_SCHEMA_LINE}\n{text}"
        for manifest in sorted(path.parent.glob("*/*")):
            folder = f"stacks/{manifest.parent.name}"
            if folder in text:
                files[f"{folder}/{manifest.name}"] = manifest.read_text()
    return files


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files. Raises ConfigError if one exists, EnvironmentProblem if one cannot be
    written."""
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise ConfigError(
            f"{folder}: already contains {', '.join(existing)}; nothing was written; name another "
            "folder"
        )
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(text)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}") from error
