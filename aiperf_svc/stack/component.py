"""The component for a user's own Pulumi program: a benchmark and the system that it measures.

A plan needs the whole config before anything is created, so the config takes plain values and no
Outputs. Only secrets and the kubeconfig may be values that are known during the deployment.
`provider/` serves the same component to programs in other languages. `declare_stack` is the program
of a project whose stacks are stack files.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from aiperf_svc.adapters.cluster.ownership import owner_name
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.name_suggestions import did_you_mean
from aiperf_svc.plan.identity import stack_name_of
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.stack.benchmark import BenchmarkStack, BenchmarkStackArgs
from aiperf_svc.stack.settings import (
    PROVIDER_VERSION,
    Cluster,
    check_is_path,
    copy_warnings,
    make_plan,
    read_settings,
    refuse_if_used,
)


def declare_stack() -> None:
    """Create one component from the stack's configuration (`aiperf:benchmark` and the other keys of
    a stack file), with its outputs as the stack's outputs. Raises pulumi.RunError."""
    settings = read_settings(pulumi.Config("aiperf"))
    refuse_if_used(settings.plan, settings.cluster)
    for line in settings.warnings:
        pulumi.log.warn(line)
    if settings.summary:
        pulumi.log.info(settings.summary)
    benchmark = BenchmarkStack(
        "benchmark",
        BenchmarkStackArgs(
            plan=settings.plan,
            owner=settings.owner,
            cluster=settings.cluster,
            secrets=settings.secrets,
        ),
    )
    for name, value in benchmark.outputs.items():
        pulumi.export(name, value)


@dataclass(frozen=True, kw_only=True)
class BenchmarkArgs:
    """What a benchmark measures, and the cluster that it runs in."""

    config: Json
    """The benchmark, with the keys of `aiperf:benchmark` in a stack file. It takes no Outputs."""
    name: str | None = None
    """Part of the names of all objects. Default: the names of the Pulumi stack and resource."""
    kubeconfig: pulumi.Input[str] | None = None
    """Path of the kubeconfig, or an Output with its content. Default: `KUBECONFIG`, or
    `~/.kube/config`."""
    context: str | None = None
    """Context of the kubeconfig. Default: its current one."""
    cluster_identifier: str | None = None
    """UID of the namespace `kube-system`. Another cluster is refused."""
    secrets: Mapping[str, pulumi.Input[str]] | None = None
    """Values of secrets that the config needs, such as `targetApiKey`."""
    generation: int | None = None
    """A new number starts a new run of the same config."""
    target: str | None = None
    """Name of the target, of a config with several."""
    shape: int | None = None
    """Number of the shape, of an experiment whose trials need different pods."""


class Benchmark(pulumi.ComponentResource):
    """Creates a benchmark, which starts when all of its pods are ready. Its pods are created after
    the resources in `depends_on`. After `deployment.ttl` it deletes itself, so it belongs in a
    stack that is refreshed before each update.
    """

    namespace: pulumi.Output[str]
    """Namespace of the benchmark."""
    run_id: pulumi.Output[str]
    """Identifies the run: a hash of the config and the generation."""
    port_forward: pulumi.Output[str]
    """Command that makes the results API reachable on this machine."""
    url: pulumi.Output[str]
    """Address of the results API outside of the cluster; empty if `results.expose` opens none."""
    results_token: pulumi.Output[str]
    """Bearer token of the results API."""

    def __init__(
        self, name: str, args: BenchmarkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        # A component provider passes a dictionary.
        args = args if isinstance(args, BenchmarkArgs) else BenchmarkArgs(**args)
        check_is_path(args.kubeconfig, "kubeconfig")
        try:
            plan = _plan(name, args)
        except (ConfigError, EnvironmentProblem) as error:
            raise pulumi.RunError(f"{name}: {error}") from error
        cluster = Cluster(
            kubeconfig=_kubeconfig(args.kubeconfig),
            context=args.context or os.environ.get("AIPERF_CONTEXT"),
            identifier=args.cluster_identifier,
            provider_version=PROVIDER_VERSION,
            render_to=os.environ.get("AIPERF_RENDER_TO"),
        )
        secrets = _secrets(plan, args.secrets or {})
        after = tuple(_resources(opts))
        refuse_if_used(plan, cluster)
        # Pulumi adds tracebacks to an error of a component that it knows.
        super().__init__("aiperf:index:Benchmark", name, None, opts)
        for line in copy_warnings(args.kubeconfig, os.environ):
            pulumi.log.warn(line, self)
        outputs = BenchmarkStack(
            name,
            BenchmarkStackArgs(
                plan=plan,
                owner=owner_name(os.environ),
                cluster=cluster,
                secrets=secrets,
                after=after,
            ),
            pulumi.ResourceOptions(parent=self),
        ).outputs
        results: pulumi.Output[Any] = pulumi.Output.from_input(outputs["results"])
        self.namespace = pulumi.Output.from_input(outputs["namespace"]).apply(str)
        self.run_id = pulumi.Output.from_input(outputs["runId"]).apply(str)
        self.port_forward = results.apply(lambda each: str(each["portForward"]))
        self.url = results.apply(lambda each: str(each["url"]))
        self.results_token = pulumi.Output.from_input(outputs["resultsToken"]).apply(str)
        self.register_outputs(
            {
                "namespace": self.namespace,
                "runId": self.run_id,
                "portForward": self.port_forward,
                "url": self.url,
                "resultsToken": self.results_token,
            }
        )


def _plan(name: str, args: BenchmarkArgs) -> StackPlan:
    return make_plan(
        _plain(args.config, "config"),
        "config",
        stack=_plain(args.name, "name") or stack_name_of(f"{pulumi.get_stack()}-{name}"),
        generation=_plain(args.generation, "generation"),
        target=_plain(args.target, "target"),
        shape=_plain(args.shape, "shape"),
        environ=os.environ,
    )


def _plain(value: Any, path: str) -> Any:
    """Return a config with integers for whole numbers, which the engine sends as floats. Raises
    ConfigError if it contains an Output."""
    if isinstance(value, pulumi.Output):
        raise ConfigError(
            f"{path}: an Output is known only during the deployment, and the plan is made before; "
            "expected a plain value, such as the name of a Service that the program chooses"
        )
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _kubeconfig(kubeconfig: pulumi.Input[str] | None) -> pulumi.Input[str] | None:
    return (
        kubeconfig
        if kubeconfig is None or isinstance(kubeconfig, str)
        else pulumi.Output.secret(kubeconfig)
    )


def _secrets(
    plan: StackPlan, values: Mapping[str, pulumi.Input[str]]
) -> dict[str, dict[str, pulumi.Output[str]]]:
    """Return the values for each Secret. Raises RunError if one is missing or unnecessary."""
    if isinstance(values, pulumi.Output):
        raise pulumi.RunError("secrets: expected plain names; only their values can be Outputs")
    wanted = [key for keys in plan.secret_keys.values() for key in keys]
    if missing := sorted(set(wanted) - set(values)):
        raise pulumi.RunError(f"secrets: the config needs values for {', '.join(missing)}")
    for key in values:
        if key not in wanted:
            hint = did_you_mean(key, wanted)
            raise pulumi.RunError(f"secrets: the config does not need {key!r}{hint}")
    return {
        name: {key: pulumi.Output.secret(values[key]) for key in keys}
        for name, keys in plan.secret_keys.items()
    }


def _resources(opts: pulumi.ResourceOptions | None) -> Iterator[pulumi.Resource]:
    """Yield the resources of `depends_on`, which do not apply to a component's children."""
    resources: Any = opts.depends_on if opts is not None else None
    for each in resources if isinstance(resources, Sequence) else [resources]:
        if isinstance(each, pulumi.Resource):
            yield each
        elif each is not None:
            raise pulumi.RunError("depends_on: expected resources or a list of them, not an Output")
