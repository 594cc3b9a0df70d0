"""`aiperf-svc schedule`."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from aiperf_svc.cli.options import add_request_flags
from aiperf_svc.cli.stacks import committed_request
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from aiperf_svc.adapters.cluster.schedule import Schedule
    from aiperf_svc.runner.stack.request import StackRequest

DESCRIPTION = """Print a CronJob that runs a stack at given times, with its roles, or apply it.

  aiperf-svc schedule bench-night --cron "0 3 * * *" --state s3://BUCKET/state | kubectl apply -f -

The state of Pulumi and the results are in buckets. Their keys and the passphrase of the state are
in a Secret that exists: PULUMI_CONFIG_PASSPHRASE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and
AIPERF_WEBHOOK_SECRET for a webhook. docs/production.md describes all of it."""

PASSED = (
    *("AIPERF_IMAGE", "AIPERF_WORKLOAD_IMAGE"),
    *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
)
"""Variables that are not secret and that the runner gets as they are here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stack, the times, and what the runner needs."""
    parser.add_argument("stack", metavar="STACK", help="Name of a stack, or its file.")
    parser.add_argument(
        "--cron",
        metavar="FIELDS",
        required=True,
        help='When: minute hour day month weekday, such as "0 3 * * *".',
    )
    parser.add_argument(
        "--time-zone", metavar="ZONE", help="Of --cron: Europe/Berlin. Default: the cluster's."
    )
    parser.add_argument(
        "--state",
        metavar="URL",
        default=os.environ.get("PULUMI_BACKEND_URL", ""),
        help="Bucket of Pulumi's state. Default: PULUMI_BACKEND_URL.",
    )
    parser.add_argument(
        "--image",
        metavar="NAME",
        default=os.environ.get("AIPERF_RUNNER_IMAGE", ""),
        help="Image of the runner, which images/build makes with RUNNER=1. Default: "
        "AIPERF_RUNNER_IMAGE, else the image of the services with -runner after its name.",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default="",
        help="Namespace of the runner. Default: deployment.namespace.name, else aiperf.",
    )
    parser.add_argument(
        "--secret",
        metavar="NAME",
        default="",
        help="Secret with the passphrase and the keys. Default: aiperf-STACK.",
    )
    parser.add_argument(
        "--apply", action="store_true", help="Create the objects, or change those that are there."
    )
    add_request_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the objects, or apply them."""
    from aiperf_svc.adapters.cluster.schedule import check_backend, check_cron, manifests
    from aiperf_svc.cli.flag_config import read_draft
    from aiperf_svc.config.load_config import stack_path
    from aiperf_svc.config.yaml_files import yaml_text

    args.config = stack_path(args.stack)
    check_cron(args.cron)
    check_backend(args.state)
    request = committed_request(read_draft(args, flags=()), args, args.config)
    _check_settings(request)
    objects = manifests(request.plan, args.config.read_text(), _schedule(request, args))
    if not args.apply:
        print("---\n".join(map(yaml_text, objects)), end="")
        return int(ExitCode.OK)
    from aiperf_svc.runner import signals

    for line in signals.run(_apply(request, objects)):
        print(line, file=sys.stderr)
    return int(ExitCode.OK)


async def _apply(request: "StackRequest", objects: list[dict[str, object]]) -> list[str]:
    from aiperf_svc.adapters.cluster.api.connection import connect
    from aiperf_svc.adapters.cluster.schedule import apply

    where = {"kubeconfig": request.used_kubeconfig, "context": request.used_context}
    async with connect(**where) as cluster:
        return await apply(cluster, objects)


def _check_settings(request: "StackRequest") -> None:
    """Raise ConfigError for keys that are for the machine of a user."""
    given = request.settings.get("config", {})
    for key in ("aiperf:clusters", "aiperf:kubeconfig", "aiperf:context"):
        if key in given:
            raise ConfigError(
                f"{key}: the runner of a schedule works in its own cluster, by its pod's account; "
                "leave the key out"
            )


def _schedule(request: "StackRequest", args: argparse.Namespace) -> "Schedule":
    from aiperf_svc.adapters.cluster.schedule import Schedule
    from aiperf_svc.config.placement import check_fixed, is_pinned, mirrored
    from aiperf_svc.runner.stack.members import expand_requests, member_requests, whole_footprint

    requests = member_requests(request)
    footprint = whole_footprint(requests, expand_requests(requests))
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
        longest_s=-(-footprint.time_ns // 10**9),
        environ={name: os.environ[name] for name in PASSED if os.environ.get(name)},
    )


def _runner_image(services: str) -> str:
    """Return the image of the runner beside an image of the services. A digest is not that of
    another image."""
    name, at, _ = services.partition("@")
    folder, slash, last = name.rpartition("/")
    base, colon, tag = last.partition(":")
    if at and not colon:
        raise ConfigError("--image: name the image of the runner, by its digest")
    return f"{folder}{slash}{base}-runner{colon}{tag}"
