"""Prints the Kubernetes objects of a stack as JSON, without an engine, a state or a cluster.

The program runs against a monitor that records the resources it would create. The runner uses this
to validate the objects in the cluster (`dryRun=All`) before it creates any. It reads from standard
input a JSON object with `stack` and `config`, the values of the stack's configuration.
"""

import asyncio
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pulumi
import pulumi.runtime
from pulumi.runtime import rpc
from pulumi.runtime.stack import run_in_stack

from aiperf_svc.domain.json_objects import Json

SUFFIX = "00000000"
"""Replaces the suffix that Pulumi appends to generated names."""


class Recorder(pulumi.runtime.Mocks):
    """Records the inputs of each Kubernetes object, and responds as a cluster would."""

    def __init__(self) -> None:
        self.objects: list[Json] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, Any]:
        """Record a resource and return its id and its state."""
        if not args.typ.startswith("kubernetes:") or "kind" not in args.inputs:
            # A Helm release is not an object: the provider installs it.
            return args.name, args.inputs
        metadata = {"name": f"{args.name}-{SUFFIX}", **args.inputs.get("metadata", {})}
        found = {**args.inputs, "metadata": metadata}
        self.objects.append(found)
        return args.name, {**found, "metadata": {**metadata, "uid": f"uid-of-{metadata['name']}"}}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        """Respond to a function call. The program makes none."""
        return {}


async def _objects(stack: str, config: Json) -> list[Json]:
    recorder = Recorder()
    pulumi.runtime.set_all_config(
        {key: v if isinstance(v, str) else json.dumps(v) for key, v in config.items()}
    )
    pulumi.runtime.set_mocks(recorder, project="aiperf", stack=stack, preview=False)
    # The program creates its own stack resource, with the outputs.
    pulumi.runtime.settings.ROOT.set(None)
    await run_in_stack(_program)
    return recorder.objects


def _program() -> None:
    runpy.run_path(str(Path(__file__).parent / "__main__.py"), run_name="__main__")


def _whole(value: Any) -> Any:
    """Return a manifest as it would be posted. An engine marks secrets and has only floats."""
    if rpc.is_rpc_secret(value):
        return _whole(rpc.unwrap_rpc_secret(value))
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def main() -> None:
    """Read the stack and print its objects."""
    wanted = json.load(sys.stdin)
    objects = asyncio.run(_objects(wanted["stack"], wanted["config"]))
    json.dump(_whole(objects), sys.stdout)


if __name__ == "__main__":
    main()
