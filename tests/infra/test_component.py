"""The component in a user's program, next to the user's own resources."""

import json
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pulumi
import pulumi_kubernetes as k8s
import pytest
import yaml
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto.provider_pb2 import ConstructRequest, GetSchemaRequest
from pulumi.runtime.proto.provider_pb2_grpc import ResourceProviderStub

import aiperf_svc
from aiperf_svc.adapters.cluster.ownership import HOLDER
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.stack import Benchmark, BenchmarkArgs
from aiperf_svc.stack.provider import BenchmarkProvider
from tests.support.recording import ROOT, Recording, record, stack_config

CONFIG: dict[str, Any] = stack_config("bench-smoke")["aiperf:benchmark"]


@pytest.fixture(autouse=True)
def _without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOLDER, "test")


def _recorded(**args: Any) -> Recording:
    return _recorded_by(lambda: BenchmarkArgs(**args))


def _recorded_by(make_args: Callable[[], BenchmarkArgs]) -> Recording:
    """Record a program that makes the arguments, because outputs belong to its event loop."""

    def program() -> None:
        server = k8s.core.v1.Service("server", metadata={"name": "server"})
        benchmark = Benchmark("load", make_args(), pulumi.ResourceOptions(depends_on=[server]))
        pulumi.export("namespace", benchmark.namespace)
        pulumi.export("runId", benchmark.run_id)
        pulumi.export("portForward", benchmark.port_forward)
        pulumi.export("token", benchmark.results_token)

    return record("dev", {}, program=program)


@pytest.fixture(scope="module")
def usual() -> Recording:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOLDER, "test")
        return _recorded(config=CONFIG)


def test_objects_equal_those_of_a_stack_file(usual: Recording) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOLDER, "test")
        expected = record("dev-load", {"aiperf:benchmark": CONFIG})
    own = [m for m in usual.manifests if m["metadata"]["name"] != "server"]
    assert own == expected.manifests


def test_name_has_pulumi_stack_and_resource(usual: Recording) -> None:
    worker = usual.registration("Deployment", "worker")
    assert worker.inputs["metadata"]["labels"][STACK_LABEL] == "dev-load"
    assert usual.outputs["portForward"].endswith("service/records-manager-dev-load 9090")


def test_component_is_the_parent_of_all(usual: Recording) -> None:
    for made in usual.objects.values():
        parents = [made.parent]
        while parents[-1] in usual.resources:
            parents.append(usual.resources[parents[-1]].parent)
        types = [each.rpartition("::")[0] for each in parents]
        assert made.name == "server" or types[-2].endswith("aiperf:index:Benchmark")


def test_pods_follow_the_resources_of_the_user(usual: Recording) -> None:
    (server,) = (urn for urn, made in usual.objects.items() if made.name == "server")
    assert server in usual.registration("Deployment", "worker").dependencies
    assert server not in usual.registration("NetworkPolicy", "default").dependencies


def test_whole_numbers_of_an_engine_are_integers() -> None:
    config = {**CONFIG, "load": {**CONFIG["load"], "concurrency": 8.0}}
    found = _recorded(config=config, generation=1.0, shape=1.0)
    assert found.outputs["runId"] == _recorded(config=CONFIG).outputs["runId"]


def test_secret_reaches_only_its_secret() -> None:
    config = {**CONFIG, "endpoint": {**CONFIG["endpoint"], "api_key_env": "KEY"}}

    def make_args() -> BenchmarkArgs:
        secrets = {"targetApiKey": pulumi.Output.from_input("k")}
        return BenchmarkArgs(config=config, secrets=secrets)

    found = _recorded_by(make_args).objects.values()
    holders = [made for made in found if "data" in made.secret_inputs]
    assert {made.name for made in holders} == {"keys", "target"}


def test_output_in_config_is_refused() -> None:
    def make_args() -> BenchmarkArgs:
        url = pulumi.Output.from_input("http://a")
        return BenchmarkArgs(config={"endpoint": {"url": url}})

    with pytest.raises(pulumi.RunError, match=r"config\.endpoint\.url: an Output is known only"):
        _recorded_by(make_args)


@pytest.mark.parametrize("key", ["name", "target", "secrets"])
def test_output_that_decides_the_plan_is_refused(key: str) -> None:
    def make_args() -> BenchmarkArgs:
        arguments: Any = {key: pulumi.Output.from_input("known later")}
        return BenchmarkArgs(config=CONFIG, **arguments)

    with pytest.raises(pulumi.RunError, match=f"{key}: .* Output"):
        _recorded_by(make_args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"config": {}}, "load: config: 2 problems"),
        ({"config": CONFIG, "name": "A B"}, "expected at most 40 lowercase letters"),
        ({"config": CONFIG, "kubeconfig": "a:\nb"}, "kubeconfig holds the file's content"),
        ({"config": CONFIG, "secrets": {"key": "k"}}, "does not need 'key'"),
    ],
)
def test_mistake_is_one_error(args: dict[str, Any], message: str) -> None:
    with pytest.raises(pulumi.RunError, match=message):
        _recorded(**args)


def test_mistake_registers_no_component() -> None:
    def program() -> None:
        with pytest.raises(pulumi.RunError):
            Benchmark("load", BenchmarkArgs(config=CONFIG, secrets={"key": "k"}))

    assert not record("dev", {}, program=program).resources


def test_example_has_a_server_and_its_benchmark() -> None:
    def program() -> None:
        runpy.run_path(str(ROOT / "examples" / "component"), run_name="__main__")

    made = record("dev", {"server:image": "server:1"}, program=program)
    names = {each.name for each in made.objects.values() if each.type.endswith(":Deployment")}
    assert {"server", "worker"} <= names
    assert made.outputs["namespace"].startswith("aiperf-dev-load")


def test_example_in_yaml_has_a_valid_config() -> None:
    project = yaml.safe_load((ROOT / "examples" / "component-yaml" / "Pulumi.yaml").read_text())
    properties = project["resources"]["load"]["properties"]
    assert _recorded(**properties).outputs["runId"]


def test_provider_serves_the_component() -> None:
    schema = json.loads(BenchmarkProvider().schema or "")
    found = schema["resources"]["aiperf:index:Benchmark"]
    assert found["requiredInputs"] == ["config"]
    assert found["inputProperties"]["config"]["plain"]
    assert "plain" not in found["inputProperties"]["kubeconfig"]
    assert set(found["properties"]) == {
        *("namespace", "runId", "portForward", "url", "resultsToken")
    }


@pytest.fixture(scope="module")
def provider() -> Iterator[ResourceProviderStub]:
    """The provider's program, without an engine to which it reports."""
    command = (sys.executable, str(ROOT / "provider"), "")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = f"127.0.0.1:{int(process.stdout.readline())}"
            with grpc.insecure_channel(address) as channel:
                yield ResourceProviderStub(channel)
        finally:
            process.terminate()


def test_provider_program_answers_an_engine(provider: ResourceProviderStub) -> None:
    schema = json.loads(provider.GetSchema(GetSchemaRequest(), timeout=60.0).schema)
    version = provider.GetPluginInfo(Empty(), timeout=60.0).version
    example = yaml.safe_load((ROOT / "examples" / "component-yaml" / "Pulumi.yaml").read_text())
    inputs = schema["resources"]["aiperf:index:Benchmark"]["inputProperties"]
    assert set(example["resources"]["load"]["properties"]) <= set(inputs)
    assert (schema["name"], version) == ("aiperf", aiperf_svc.__version__)


def test_provider_reports_the_message_of_python(provider: ResourceProviderStub) -> None:
    args: dict[str, Any] = {"config": {"load": {}}}
    inputs = Struct()
    inputs.update(args)
    request = ConstructRequest(
        type="aiperf:index:Benchmark", name="load", stack="dev", inputs=inputs
    )
    with pytest.raises(grpc.RpcError) as refused:
        provider.Construct(request, timeout=60.0)
    with pytest.raises(pulumi.RunError) as expected:
        _recorded(**args)
    assert refused.value.details() == str(expected.value)


def test_command_without_pulumi_names_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = project["scripts"]["pulumi-resource-aiperf"]
    program = (
        "import sys; from pkgutil import resolve_name\n"
        "sys.modules |= {'pulumi': None, 'pulumi_kubernetes': None}\n"
        f"sys.exit(resolve_name({entry!r})())"
    )
    done = subprocess.run(
        (sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (ExitCode.ERROR, 1)
    assert done.stderr.endswith("pip install 'aiperf-svc[stack]'\n")
