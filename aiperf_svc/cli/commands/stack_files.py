"""`preview`, `schedule`, `validate` and `init`: stack files, before anything runs."""

import argparse
import json
import os
import sys
from pathlib import Path

from aiperf_svc.adapters.cluster.api.connection import connect
from aiperf_svc.adapters.cluster.schedule import (
    Schedule,
    apply,
    check_backend,
    check_cron,
    manifests,
)
from aiperf_svc.adapters.pulumi.new_project import project_files, write_project
from aiperf_svc.adapters.pulumi.project import read_settings, stack_name
from aiperf_svc.adapters.pulumi.rendering import PLUGIN_VARIABLES
from aiperf_svc.cli.checks import checked_trials, cluster_problems, config_problems
from aiperf_svc.cli.flag_config import read_draft
from aiperf_svc.cli.parsers.stacks import FIRST_STACK
from aiperf_svc.cli.schemas import json_schema
from aiperf_svc.cli.stacks import committed_request
from aiperf_svc.config.clusters import read_clusters
from aiperf_svc.config.load_config import STACKS, is_stack_file, own_base, stack_path
from aiperf_svc.config.placement import check_fixed, is_pinned, mirrored
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import check_stack_name
from aiperf_svc.plan.lifetime import seconds
from aiperf_svc.runner import signals
from aiperf_svc.runner.stack import preview as previews
from aiperf_svc.runner.stack.members import (
    expand_requests,
    member_requests,
    several_lines,
    total_footprint,
)
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.previews import summary
from aiperf_svc.workloads.registry import load_benchmark
from aiperf_svc.workloads.trials import CheckedTrials


def preview(args: argparse.Namespace) -> int:
    """Print the summary."""
    if (args.json or args.manifests) and (args.markdown or args.against is not None):
        raise ConfigError(
            f"{'--json' if args.json else '--manifests'}: prints no comparison and no Markdown; "
            "leave out --markdown and --against"
        )
    args.config = stack_path(args.stack)
    request = committed_request(read_draft(args, flags=()), args)
    if args.manifests:
        print("---\n".join(map(yaml_text, previews.objects(request))), end="")
        return int(ExitCode.OK)
    print(_preview(request, args))
    if args.objects:
        print("\n" + previews.objects_text(request, args.against, is_markdown=args.markdown))
    return int(ExitCode.OK)


def _preview(request: StackRequest, args: argparse.Namespace) -> str:
    requests = member_requests(request, read_clusters(request.settings, str(args.config)))
    expansion = expand_requests(requests)
    footprint = total_footprint(requests, expansion)
    if args.json:
        found = previews.as_json(request) | {"footprint": footprint.as_json}
        return json.dumps(found, default=str)
    compared = previews.compare(request, args.against)
    if len(request.plans) > 1:
        return previews.of_shapes(request, compared, is_markdown=args.markdown)
    format_ = summary.as_markdown if args.markdown else summary.as_text
    parts = [format_(request.plan, compared).rstrip("\n")]
    if expansion.is_joint:
        several = several_lines(expansion, requests)
        parts.append(f"\n#### Stacks\n\n```\n{several}\n```" if args.markdown else several)
    if request.config.experiment is not None:
        parts += ["", previews.trials_text(request, is_markdown=args.markdown)]
    return "\n".join(parts)


PASSED = (
    *("AIPERF_IMAGE", "AIPERF_WORKLOAD_IMAGE"),
    *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
)
"""Non-secret variables that the runner gets with their current values."""


def schedule(args: argparse.Namespace) -> int:
    """Print the objects, or apply them."""
    args.config = stack_path(args.stack)
    check_cron(args.cron)
    check_backend(args.state)
    request = committed_request(read_draft(args, flags=()), args)
    _check_settings(request)
    members = member_requests(request).values()
    plans = [request.plan, *(plan for each in members for plan in each.plans)]
    objects = manifests(plans, args.config.read_text(), _schedule(request, args))
    if not args.apply:
        print("---\n".join(map(yaml_text, objects)), end="")
        return int(ExitCode.OK)
    for line in signals.run(_apply(request, objects)):
        print(line, file=sys.stderr)
    return int(ExitCode.OK)


async def _apply(request: StackRequest, objects: list[dict[str, object]]) -> list[str]:
    where = {"kubeconfig": request.used_kubeconfig, "context": request.used_context}
    async with connect(**where) as cluster:
        return await apply(cluster, objects)


def _check_settings(request: StackRequest) -> None:
    """Raise ConfigError for keys and files that exist only on a user's machine."""
    settings = request.settings.get("config", {})
    for key in ("aiperf:clusters", "aiperf:kubeconfig", "aiperf:context"):
        if key in settings:
            raise ConfigError(
                f"{key}: a scheduled run uses the cluster and the ServiceAccount of its own pod; "
                "leave the key out"
            )
    configs = (request.config,) if request.checked is None else request.checked.different
    for each in (source for config in configs for source in config.deployment.target.sources):
        path = each.manifests or ("" if each.is_remote else each.chart)
        if path and not Path(path).is_absolute():
            raise ConfigError(
                f"deployment.target.from: {path!r} is a path of this machine, and the pod of the "
                "runner has only the stack's file; use a chart that is downloaded, or put the "
                "objects into the file (object)"
            )


def _schedule(request: StackRequest, args: argparse.Namespace) -> Schedule:
    requests = member_requests(request)
    footprint = total_footprint(requests, expand_requests(requests))
    plan, deployment = request.plan, request.config.deployment
    image = args.image or _runner_image(plan.deadline.image.name)
    try:
        check_fixed(image)
    except ValueError as error:
        raise ConfigError(f"--image: {error}") from error
    image = mirrored(image, deployment.registry_mirror)
    if deployment.require_digests and not is_pinned(image):
        raise ConfigError(
            f"deployment.require_digests: the runner's image {image} has no digest; name one with "
            "--image NAME@sha256:DIGEST"
        )
    return Schedule(
        cron=args.cron,
        time_zone=args.time_zone,
        image=image,
        backend=args.state,
        secret=args.secret or f"aiperf-{request.stack}",
        namespace=args.namespace or deployment.namespace.name or "aiperf",
        # Each shape may wait for room before its stack is created.
        longest_s=seconds(footprint.time_ns + deployment.wait_for_room * len(request.shapes)),
        environ={name: os.environ[name] for name in PASSED if os.environ.get(name)},
    )


def _runner_image(services: str) -> str:
    """Return the runner's image for an image of the services. The digest is dropped, because it
    belongs to the other image."""
    name, at, _ = services.partition("@")
    folder, slash, last = name.rpartition("/")
    base, colon, tag = last.partition(":")
    if at and not colon:
        raise ConfigError("--image: name the image of the runner, by its digest")
    return f"{folder}{slash}{base}-runner{colon}{tag}"


def validate(args: argparse.Namespace) -> int:
    """Check each file, and print the result."""
    names = args.configs or sorted(str(path) for path in STACKS.glob("Pulumi.*.yaml"))
    if not names:
        raise ConfigError(f"no stack files in {STACKS}/; name a file")
    is_refused = False
    for name in names:
        try:
            path = stack_path(name)
            config, is_stack = load_benchmark(path), is_stack_file(path)
            checks = cluster_problems if is_stack else config_problems
            checked = checked_trials(config, checks, source=str(path))
            if is_stack:
                _check_stack(path, checked)
            print(f"{path}: ok")
        except ConfigError as error:
            is_refused = True
            print(f"error: {error}", file=sys.stderr)
    return int(ExitCode.BAD_CONFIG if is_refused else ExitCode.OK)


def _check_stack(path: Path, checked: CheckedTrials) -> None:
    """Plan the stack as `run` does. Raises ConfigError."""
    stack, settings = stack_name(path), read_settings(path)
    places = read_clusters(settings, str(path))
    try:
        check_stack_name(stack)
        request = StackRequest(
            stack=stack,
            config=checked.config,
            settings=settings,
            base=own_base(path),
            checked=checked,
            environ={name: os.environ[name] for name in PLUGIN_VARIABLES if name in os.environ},
        )
        requests = member_requests(request, places)
        expand_requests(requests)
        for each in requests.values():
            _ = each.plan
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def init(args: argparse.Namespace) -> int:
    """Write the project."""
    stacks = list(dict.fromkeys(args.stack or [FIRST_STACK]))
    files = project_files(stacks, json_schema("stack"))
    write_project(args.folder, files)
    for name in files:
        print(args.folder / name)
    print(f"next: aiperf-svc preview {stacks[0]} (README.md has the steps)", file=sys.stderr)
    return 0
