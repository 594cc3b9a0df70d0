"""A user's request for a stack: a committed file, or flags that stand for one."""

import copy
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

import aiperf_svc
from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.ownership import HOLDER
from aiperf_svc.adapters.cluster.schedule import is_of_ended_pod
from aiperf_svc.adapters.pulumi import project
from aiperf_svc.adapters.pulumi.cli import PulumiCli
from aiperf_svc.adapters.pulumi.manifests import read_manifests
from aiperf_svc.adapters.pulumi.plan_file import FILE, PLAN, write_plan
from aiperf_svc.adapters.pulumi.rendering import render_release
from aiperf_svc.adapters.pulumi.state_home import StateHome
from aiperf_svc.adapters.storage import folders
from aiperf_svc.adapters.terminal import output
from aiperf_svc.adapters.terminal.output import Say
from aiperf_svc.config.load_config import STACK_KEY, STACKS
from aiperf_svc.config.workload import Config
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.release import release_in_visit
from aiperf_svc.plan.run_id import non_defaults
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.service_pods import PAGES_KEY, TARGET_KEY, UPLOAD_KEYS, UPLOAD_TOKEN
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.plan.target import in_visit
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Shape, shapes_of, without_trials
from aiperf_svc.workloads.stacks import AllShapes, all_shapes, check_shape, plan_stack
from aiperf_svc.workloads.trials import CheckedTrials, TrialConfig, trial_configs

IDENTIFIER = "AIPERF_CLUSTER_IDENTIFIER"
EMPTY_FILE: Json = {"config": {"aiperf:removal": "true"}}
"""Content of a stack's file for commands that need none. Parts of Pulumi's engine fail without a
value."""
SOURCES = {
    TARGET_KEY: "--api-key",
    PAGES_KEY: "the variable of telemetry.key_env",
    **{key: variable for variable, key in (UPLOAD_KEYS | UPLOAD_TOKEN).items()},
}
"""Sources of a secret other than Pulumi, by its key of the stack's configuration."""
IMAGE, WORKLOAD_IMAGE, CONTEXT = "AIPERF_IMAGE", "AIPERF_WORKLOAD_IMAGE", "AIPERF_CONTEXT"


@dataclass(frozen=True, kw_only=True)
class StackRequest:
    """Request for one stack: its config, and the cluster and backend to use."""

    stack: str
    config: Config
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Content of the stack's file; empty for flags."""
    base: Path | None = None
    """Folder to which paths of a release are relative; None: the working folder."""
    checked: CheckedTrials | None = None
    """The trials of a config that was checked. A copy of a request can have another config."""
    known_shapes: AllShapes | None = None
    """All shapes of the config, if they were computed before."""
    is_joint: bool = False
    """Whether several targets or clusters are measured at the same time. Each shape then has a
    stack of its own for each of them, with a common start."""
    kubeconfig: str | None = None
    """Path; None: the one in the stack's file, KUBECONFIG, or the default one."""
    context: str | None = None
    generation: int | None = None
    """Number that distinguishes runs of an unchanged config."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Secret values by key of the stack's configuration."""
    is_ephemeral: bool = False
    run: RunValues = field(default_factory=RunValues)
    only_shape: int | None = None
    """The only shape of this stack, if each shape has a stack of its own; None: all shapes."""
    folder: Path | None = None
    """Folder for the results, created for this run; None: not known yet."""
    is_resumed: bool = False
    """Whether an experiment is resumed in the folder. A killed runner's stack may still exist."""
    finished: frozenset[int] = frozenset()
    """Numbers of the trials that need not run again."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def used_kubeconfig(self) -> str | None:
        """Path of the kubeconfig; None: KUBECONFIG, or the default one."""
        path = self.kubeconfig or self._setting("kubeconfig")
        return str(Path(path).expanduser().absolute()) if path else None

    @property
    def used_context(self) -> str | None:
        """Context of the kubeconfig; None: its current one."""
        return self.context or self._setting("context") or self.environ.get(CONTEXT)

    @property
    def used_generation(self) -> int:
        """Number of this run of an unchanged config."""
        return self.generation or int(self._setting("generation") or 1)

    @property
    def used_shape(self) -> int:
        """Number of the shape that the stack's file chooses for `pulumi up`. Raises ConfigError."""
        shape = self._setting("shape") or "1"
        if not shape.isdecimal():
            raise ConfigError(f"aiperf:shape: {shape!r}: expected a whole number from 1")
        check_shape(int(shape), self.shapes)
        return int(shape)

    @cached_property
    def members(self) -> tuple[TrialConfig, ...]:
        """The trials of the config. Raises ConfigError."""
        if self.checked is not None and self.checked.config is self.config:
            return self.checked.members
        return trial_configs(self.config)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the trials, each of which needs pods of its own. Raises ConfigError."""
        if self.known_shapes is not None and self.known_shapes.config is self.config:
            found = self.known_shapes.shapes
        elif self.config.search is not None:
            # If its values need other pods, the session creates a stack for each of them.
            found = (Shape({}, self.members),)
        else:
            found = shapes_of(self.config, "cluster", self.members)
        return without_trials(found, self.finished) if self.finished else found

    @cached_property
    def all_shapes(self) -> AllShapes:
        """The shapes, with the common parts of their plans. Raises ConfigError."""
        if self.known_shapes is not None and self.known_shapes.shapes is self.shapes:
            return self.known_shapes
        return all_shapes(self.config, self.shapes, has_own_stacks=self.is_joint)

    @property
    def at_once(self) -> int | str:
        """How many shapes run at the same time: a number or `auto`."""
        return self.config.experiment.parallel if self.config.experiment is not None else 1

    @property
    def own_shapes(self) -> Sequence[int]:
        """Numbers of the shapes that this stack runs. Raises ConfigError."""
        return range(1, len(self.shapes) + 1) if self.only_shape is None else (self.only_shape,)

    @cached_property
    def plans(self) -> tuple[StackPlan, ...]:
        """The plan of the stack for each of its shapes, which `up` brings up one after another.
        Raises ConfigError."""
        return tuple(self._planned(number, self.run) for number in self.own_shapes)

    def visit_plan(self, number: int, *, node: str) -> StackPlan:
        """Return one of `plans`, by its number from 1. In an experiment in blocks, it has the
        target of this visit, on `node` unless that is empty, and the run is held until the target
        has the uptime of all visits. Raises ConfigError."""
        blocks = self.config.experiment.blocks if self.config.experiment is not None else None
        if blocks is None:
            return self.plans[number - 1]
        run = replace(self.run, is_held=self.run.is_held or blocks.uptime is not None)
        plan = self._planned(self.own_shapes[number - 1], run)
        visit = plan.identity.run_id if blocks.restarts_target else ""
        if plan.release is not None and visit:
            return msgspec.structs.replace(plan, release=release_in_visit(plan.release, visit))
        if plan.target is None:
            return plan
        return msgspec.structs.replace(plan, target=in_visit(plan.target, node=node, visit=visit))

    def _planned(self, shape: int, run: RunValues) -> StackPlan:
        settings = StackSettings(
            stack=self.stack,
            version=aiperf_svc.__version__,
            generation=self.used_generation,
            image=self.environ.get(IMAGE, ""),
            workload_image=self.environ.get(WORKLOAD_IMAGE, ""),
            run=run,
            render=functools.partial(render_release, base=self.base, environ=self.environ),
        )
        return plan_stack(self.config, settings, shape=shape, known=self.all_shapes)

    @property
    def plan(self) -> StackPlan:
        """The plan of the first shape, or of the only one. Raises ConfigError."""
        return self.plans[0]

    def check_prerequisites(self) -> None:
        """Raise EnvironmentProblem if Pulumi is missing, ConfigError as `check_secrets` does."""
        project.check_tools(self.environ)
        self.check_secrets()

    def check_secrets(self) -> None:
        """Raise ConfigError if a secret is missing, or the passphrase of the stack's state."""
        if not self.is_ephemeral:
            project.choose_backend(StateHome(self.environ), self.environ)
        known = {key.removeprefix("aiperf:") for key in self.settings.get("config", {})}
        wanted = [key for p in self.plans for keys in p.secret_keys.values() for key in keys]
        missing = [key for key in dict.fromkeys(wanted) if key not in {*known, *self.secrets}]
        if missing:
            commands = "; ".join(f"pulumi config set --secret aiperf:{key}" for key in missing)
            raise ConfigError(
                f"stack {self.stack} needs {', '.join(f'aiperf:{key}' for key in missing)}: "
                f"{commands} or give {', '.join(SOURCES.get(key, key) for key in missing)}"
            )

    def file_content(self) -> Json:
        """Return the content of the stack's file for this run. The program reads its plan from
        `plan_file`; Pulumi stores this content with the state."""
        content = copy.deepcopy(dict(self.settings))
        config = content.setdefault("config", {})
        config.setdefault(STACK_KEY, non_defaults(self.config))
        cluster = {"kubeconfig": self.used_kubeconfig, "context": self.used_context}
        config |= {f"aiperf:{key}": value for key, value in cluster.items() if value}
        return content

    async def manifests(self, number: int) -> tuple[Json, ...]:
        """Return the objects that the program creates for one of `plans`, by its number from 1,
        without the values of secrets. Raises EnvironmentProblem."""
        plan = self.plans[number - 1]
        config = {
            key: value
            for key, value in self.file_content()["config"].items()
            if not (isinstance(value, dict) and "secure" in value)
        }
        secrets = [key for keys in plan.secret_keys.values() for key in keys]
        config |= {f"aiperf:{key}": "secret" for key in secrets}
        with folders.private_folder() as private:
            path = write_plan(private, plan)
            return await read_manifests(
                project.find_program().infra,
                stack=self.stack,
                config=config,
                environ={**self.environ, PLAN: str(path)},
            )

    def _setting(self, key: str) -> str | None:
        value = self.settings.get("config", {}).get(f"aiperf:{key}")
        return str(value) if isinstance(value, str | int) else None


def find_context(
    stack: str, environ: Mapping[str, str], *, kubeconfig: str | None, context: str | None
) -> tuple[str | None, str | None]:
    """Return the kubeconfig and context of a stack that is up, from the flags, the record of its
    run, or its file and the environment, in this order. Raises ConfigError if the file cannot be
    read."""
    record = StateHome(environ).load(stack)
    if record is not None and kubeconfig is None:
        return record.kubeconfig, context or record.context
    file = STACKS / f"Pulumi.{stack}.yaml"
    content = read_yaml(file) if file.is_file() else None
    settings = (content.get("config") if isinstance(content, dict) else None) or {}
    path = kubeconfig or settings.get("aiperf:kubeconfig")
    return (
        str(Path(path).expanduser().absolute()) if path else None,
        context or settings.get("aiperf:context") or environ.get(CONTEXT),
    )


def secrets_from(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secret values in the environment, by key of the stack's configuration."""
    sources = {v: k for k, v in (UPLOAD_KEYS | UPLOAD_TOKEN).items()} if config.artifacts.s3 else {}
    sources |= {each.key: each.variable for each in workload_of(config).secrets(config)}
    return {key: environ[name] for key, name in sources.items() if environ.get(name)}


@contextmanager
def open_project(
    stack: str,
    content: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    *,
    cluster: Cluster | None = None,
    holder: str = "",
    is_ephemeral: bool = False,
    held: int | None = None,
    say: Say = output.say,
) -> Iterator[PulumiCli]:
    """Open the CLI in a project folder of the stack. The folder of an ephemeral stack is kept.

    `content` is the stack's file; None: the file on disk, or an empty one. `cluster` is the cluster
    to which the runner is connected. The CLI uses it even if another context becomes current, and
    it shows whether the pod that holds a lock of the state has ended. `holder` identifies this
    process in the stack's Lease; `held` is the descriptor of the stack's lock. Raises ConfigError,
    EnvironmentProblem.
    """
    home, known = StateHome(environ), {HOLDER: holder}
    has_ended = functools.partial(is_of_ended_pod, cluster) if cluster is not None else None
    if cluster is not None:
        known |= {IDENTIFIER: cluster.identity, CONTEXT: cluster.context}
    with folders.locked_private_folder() as (private, lock):
        if is_ephemeral:
            folder = home.ephemeral(stack)
            backend = project.ephemeral_backend(folder)
        else:
            folder, backend = private / "project", project.choose_backend(home, environ)
        if not (folder / "Pulumi.yaml").exists():
            project.make_project(folder, stack=stack, settings=content or EMPTY_FILE)
        elif content is not None:
            project.write_stack_file(folder, stack=stack, settings=content)
        own = {PLAN: str(folder / FILE)} | {key: value for key, value in known.items() if value}
        kubeconfig = environ.get("KUBECONFIG")
        if kubeconfig:
            # The CLI works in another folder.
            files = [Path(each).absolute() for each in kubeconfig.split(os.pathsep) if each]
            own["KUBECONFIG"] = str(project.kubeconfig_with(known.get(CONTEXT, ""), files))
        logs = private / "pulumi"
        logs.mkdir()
        for line in project.repair_state(backend, stack=stack):
            say(f"note: state of stack {stack}: {line}")
        yield PulumiCli(
            folder=folder,
            stack=stack,
            environ=project.cli_environment(backend, own, environ),
            logs=logs,
            notice=backend.notice,
            private=private,
            take_over=functools.partial(
                project.take_over, stack=stack, say=say, has_ended=has_ended
            ),
            held=tuple(each for each in (held, lock) if each is not None),
        )
