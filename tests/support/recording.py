"""Runs the Pulumi program against an engine that records resources without creating them, and finds
objects in the recording."""

import asyncio
import contextvars
import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pulumi
import pulumi.runtime
import pulumi.runtime.resource
import yaml
from pulumi.runtime.mocks import MockMonitor, Mocks
from pulumi.runtime.proto.resource_pb2 import RegisterResourceResponse, ResourceInvokeResponse
from pulumi.runtime.proto.source_pb2 import StackTrace
from pulumi.runtime.settings import ROOT as ROOT_RESOURCE
from pulumi.runtime.stack import run_in_stack

from aiperf_svc.plan.identity import COMPONENT_LABEL

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
SUFFIX = "0a1b2c3d"
"""Random suffix that Pulumi would generate for auto-named resources."""
# The SDK sends the whole Python stack to the engine with each resource. Under pytest this takes
# longer than the resource itself.
pulumi.runtime.resource._get_stack_trace = StackTrace

Manifest = dict[str, Any]
State = dict[str, dict[str, Any]]
"""Type and outputs of resources by URN."""


@dataclass
class Registration:
    """One resource that the program registered."""

    type: str
    name: str
    inputs: dict[str, Any]
    parent: str
    provider: str
    dependencies: set[str]
    deleted_with: str
    ignored: tuple[str, ...]
    version: str
    """Version of the provider plugin."""
    is_deleted_before_replaced: bool
    secret_inputs: set[str] = field(default_factory=set)
    outputs: dict[str, Any] = field(default_factory=dict)
    """Outputs of a component, which registers them itself."""


@dataclass
class Recording:
    """All resources by URN, and the stack's outputs."""

    resources: dict[str, Registration]
    outputs: dict[str, Any]

    @property
    def objects(self) -> dict[str, Registration]:
        """Only the resources that become Kubernetes objects."""
        return {
            urn: made for urn, made in self.resources.items() if made.type.startswith("kubernetes:")
        }

    @property
    def state(self) -> State:
        """Return the components as a program reads them from the state of this recording."""
        return {
            urn: {"type": made.type, "outputs": made.outputs}
            for urn, made in self.resources.items()
            if made.type.startswith("aiperf:")
        }

    @property
    def manifests(self) -> list[Manifest]:
        """The Kubernetes objects as a cluster would receive them, sorted."""
        found = []
        for made in self.objects.values():
            manifest = normalised(made.inputs)
            manifest["metadata"].setdefault("name", f"{made.name}-{SUFFIX}")
            found.append(manifest)
        return sorted(found, key=lambda m: (m["kind"], m["metadata"]["name"]))

    def manifest(self, kind: str, name: str) -> Manifest:
        """Return one object."""
        return next(m for m in self.manifests if (m["kind"], m["metadata"]["name"]) == (kind, name))

    def registration(self, kind: str, name: str) -> Registration:
        """Return one resource by the last part of its type and its name in the program."""
        return next(
            made
            for made in self.resources.values()
            if made.type.rpartition(":")[2] == kind and made.name == name
        )


class _NoState(grpc.RpcError):  # type: ignore[misc]
    """The engine's error for a state that cannot be read."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return str(self)


class _Monitor(MockMonitor):
    """Records request data beyond a resource's inputs."""

    def __init__(self, mocks: Mocks, state: State | None) -> None:
        super().__init__(mocks)
        self._state = state
        self.made: dict[str, Registration] = {}
        self.stack_outputs: dict[str, Any] = {}

    def Invoke(self, request: Any) -> Any:
        """Return the state that the program names, its only function call. The SDK's implementation
        starts an event loop in a thread."""
        name = request.args["stackName"]
        if self._state is None or name != f"organization/aiperf/{pulumi.get_stack()}":
            raise _NoState(f"no state of {name}")
        response = ResourceInvokeResponse()
        getattr(response, "return").update({"name": name, "outputs": self._state})
        return response

    def RegisterResource(self, request: Any) -> Any:
        """Record the request and respond as a cluster would. The SDK's implementation creates an
        event loop and objects for each request, which takes longer than the program."""
        urn = self.make_urn(request.parent, request.type, request.name)
        response = RegisterResourceResponse(urn=urn, id=f"{request.name}-id", object=request.object)
        if request.type.startswith("kubernetes:"):
            metadata = response.object.get_or_create_struct("metadata")
            if "name" not in metadata:
                metadata["name"] = f"{request.name}-{SUFFIX}"
            metadata["uid"] = f"uid-of-{metadata['name']}"
        if request.type != "pulumi:pulumi:Stack":
            inputs = pulumi.runtime.rpc.deserialize_properties(request.object)
            self.made[urn] = Registration(
                type=request.type,
                name=request.name,
                inputs=_plain(inputs),
                parent=request.parent,
                provider=request.provider,
                dependencies=set(request.dependencies),
                deleted_with=request.deletedWith,
                ignored=tuple(request.ignoreChanges),
                version=request.version,
                is_deleted_before_replaced=request.deleteBeforeReplace,
                secret_inputs={
                    key for key, value in inputs.items() if pulumi.runtime.rpc.is_rpc_secret(value)
                },
            )
        return response

    def RegisterResourceOutputs(self, request: Any) -> Any:
        outputs = _plain(pulumi.runtime.rpc.deserialize_properties(request.outputs))
        if "pulumi:pulumi:Stack" in request.urn:
            self.stack_outputs = outputs
        else:
            self.made[request.urn].outputs = outputs
        return super().RegisterResourceOutputs(request)  # type: ignore[no-untyped-call]


class _Calls(Mocks):
    """Mocks for calls that are not resources. The program makes none."""

    def call(self, args: Any) -> tuple[dict[str, Any], None]:
        return {}, None

    def new_resource(self, args: Any) -> tuple[str, dict[str, Any]]:
        raise NotImplementedError(args.name)


def _program() -> None:
    runpy.run_path(str(INFRA), run_name="__main__")


def record(
    stack: str,
    config: dict[str, Any],
    *,
    secrets: dict[str, str] | None = None,
    program: Callable[[], None] = _program,
    state: State | None = None,
) -> Recording:
    """Run the program for `stack` with these configuration values (`aiperf:benchmark`, …). `state`
    is the program's previous state. Without it, the state cannot be read."""
    plain = {key: v if isinstance(v, str) else json.dumps(v) for key, v in config.items()}
    secret = secrets or {}
    pulumi.runtime.set_all_config({**plain, **secret}, secret_keys=list(secret))
    with asyncio.Runner() as runner:
        running = _run(stack, program, state)
        monitor = runner.run(running, context=contextvars.copy_context())
    return Recording(resources=monitor.made, outputs=monitor.stack_outputs)


async def _run(stack: str, program: Callable[[], None], state: State | None) -> _Monitor:
    monitor = _Monitor(_Calls(), state)
    pulumi.runtime.set_mocks(
        _Calls(),
        project="aiperf",
        stack=stack,
        preview=False,
        monitor=monitor,
        organization="organization",
    )
    # `set_mocks` creates another stack; the outputs belong to the program's own.
    ROOT_RESOURCE.set(None)
    await run_in_stack(program)
    return monitor


def stack_config(stack: str) -> dict[str, Any]:
    """Return the configuration of a committed stack file."""
    text = (ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text()
    config: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)["config"]
    return config


def normalised(value: Any) -> Any:
    """Return a manifest with integers instead of the engine's floats and without secret data."""
    if isinstance(value, dict):
        kept = {key: normalised(item) for key, item in value.items() if item is not None}
        if kept.get("kind") == "Secret" and "data" in kept:
            kept["data"] = dict.fromkeys(sorted(kept["data"]), "(secret)")
        # The provider annotates auto-named objects.
        kept.get("annotations", {}).pop("pulumi.com/autonamed", None)
        return kept
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _plain(value: Any) -> Any:
    if pulumi.runtime.rpc.is_rpc_secret(value):
        return _plain(pulumi.runtime.rpc.unwrap_rpc_secret(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


STACK = "bench"


def benchmark(**deployment: Any) -> dict[str, Any]:
    """Return a short load on a mock server with these keys of `deployment`."""
    return {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"concurrency": 1000, "duration": "10s", "grace_period": "5s"},
        "deployment": {"target": {"kind": "mock"}, **deployment},
    }


def recorded(**deployment: Any) -> Recording:
    """Return the recorded stack of that load."""
    return record(STACK, {"aiperf:benchmark": benchmark(**deployment)})


@cache
def usual_stack() -> Recording:
    """Return the recorded stack with default settings."""
    return recorded()


def pod_templates(recording: Recording) -> list[Manifest]:
    """Return the pod templates of all Deployments."""
    return [m["spec"]["template"] for m in recording.manifests if m["kind"] == "Deployment"]


def component_of(template: Manifest) -> str:
    """Return the component of a pod."""
    name: str = template["metadata"]["labels"][COMPONENT_LABEL]
    return name


def environment_of(template: Manifest) -> dict[str, dict[str, Any]]:
    """Return the variables of a pod's only container by name."""
    (container,) = template["spec"]["containers"]
    return {each["name"]: each for each in container.get("env", ())}


def config_file(recording: Recording) -> str:
    """Return the config file that the services read."""
    config = next(m for m in recording.manifests if "config.yaml" in m.get("data", {}))
    text: str = config["data"]["config.yaml"]
    return text


def kinds_and_names(recording: Recording, urns: set[str]) -> set[tuple[str, str]]:
    """Return kind and program name of those resources that are Kubernetes objects."""
    made = [recording.resources[urn] for urn in urns if urn in recording.objects]
    return {(one.type.rpartition(":")[2], one.name) for one in made}
