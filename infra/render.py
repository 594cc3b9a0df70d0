"""Prints the objects of a Helm chart or a kustomization as JSON.

Pulumi's Kubernetes provider renders them, so Helm is not needed and `up` creates exactly the
reviewed objects. It runs without an engine and a cluster, and uses the network only for downloads
of a chart or a kustomization. It reads from standard input a JSON object with `provider`, the path
of the plugin, `token`, the name of its function, and `args`.
"""

import json
import subprocess
import sys
from typing import Any

import grpc
from google.protobuf import json_format, struct_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from aiperf_svc.domain.json_objects import Json

MAX_BYTES = 256 * 2**20
"""Size limit of the rendered objects in bytes."""
NO_ENGINE = "127.0.0.1:1"
"""The provider requires the address of an engine to log to."""
NO_CLUSTER = {"renderYamlToDirectory": "/nonexistent"}
"""With this setting the provider contacts no cluster. It writes there only what it creates."""


def render(stub: Any, token: str, args: Json) -> list[Any]:
    """Return the objects that a function of the provider renders. Raises grpc.RpcError."""
    stub.Configure(
        provider_pb2.ConfigureRequest(
            variables={f"kubernetes:config:{key}": value for key, value in NO_CLUSTER.items()},
            args=_struct(NO_CLUSTER),
            acceptSecrets=True,
            acceptResources=True,
        )
    )
    response = stub.Invoke(provider_pb2.InvokeRequest(tok=token, args=_struct(args)))
    found = json_format.MessageToDict(getattr(response, "return"))
    objects: list[Any] = _whole(found.get("result") or [])
    return objects


def _struct(values: Json) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(values)
    return made


def _whole(value: Any) -> Any:
    """Restore the whole numbers in a value: the protocol has only floats."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def main() -> None:
    """Render the objects and print them. Exit with the provider's message if that fails."""
    wanted = json.load(sys.stdin)
    process = subprocess.Popen(
        [wanted["provider"], NO_ENGINE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().decode().strip()
        options = [("grpc.max_receive_message_length", MAX_BYTES)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = provider_pb2_grpc.ResourceProviderStub(channel)
            objects = render(stub, wanted["token"], wanted["args"])
    except grpc.RpcError as error:
        sys.exit(error.details())
    finally:
        process.kill()
        process.wait()
    json.dump(objects, sys.stdout)


if __name__ == "__main__":
    main()
