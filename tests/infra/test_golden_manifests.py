"""Every committed stack file renders to exactly the manifests in `golden/`.

After an intended change, run `pytest tests/infra --regenerate-golden` and review the diff.
"""

import base64
import difflib
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.cluster.preflight import quotas
from aiperf_svc.workloads.previews import summary
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import to_plan
from tests.support.recording import ROOT, SUFFIX, Manifest, normalised, record, stack_config

STACKS = sorted(path.name.split(".")[1] for path in (ROOT / "stacks").glob("Pulumi.*.yaml"))
GOLDEN = Path(__file__).parent / "golden"
SECRETS = {"aiperf:targetApiKey": "sk-of-the-target", "aiperf:hubToken": "hf-of-the-hub"}


class _Dumper(yaml.SafeDumper):
    """Writes files inside manifests as blocks, so that diffs show lines."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def _rendered(manifests: list[Manifest]) -> str:
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=True, width=100)


def _committed(stack: str) -> list[Manifest]:
    return list(yaml.load_all((GOLDEN / f"{stack}.yaml").read_bytes(), Loader=yaml.CSafeLoader))


def _assert_same(got: list[Manifest], wanted: list[Manifest], name: str) -> None:
    if got != wanted:
        before, after = (_rendered(each).splitlines() for each in (wanted, got))
        pytest.fail(
            "\n".join(difflib.unified_diff(before, after, name, "rendered", lineterm="", n=2))
        )


COUNTED = {
    "ConfigMap": "configmaps", "Deployment": "deployments.apps", "Job": "jobs.batch",
    "Lease": "leases.coordination.k8s.io", "Role": "roles.rbac.authorization.k8s.io",
    "NetworkPolicy": "networkpolicies.networking.k8s.io", "Secret": "secrets",
    "PodDisruptionBudget": "poddisruptionbudgets.policy", "Service": "services",
    "RoleBinding": "rolebindings.rbac.authorization.k8s.io", "ServiceAccount": "serviceaccounts",
}  # fmt: skip
"""Quota resource of each kind of object."""


@pytest.mark.parametrize("stack", ["bench-smoke", "bench-variants", "bench-monitored"])
def test_preview_and_quotas_count_the_committed_manifests(stack: str) -> None:
    config = parse_benchmark(stack_config(stack)["aiperf:benchmark"], "")
    plan, kinds = to_plan(config, stack=stack), Counter(each["kind"] for each in _committed(stack))
    numbers = [int(part.split()[0]) for part in summary.objects_line(plan).split(", ")]
    assert (len(numbers), sum(numbers)) == (len(kinds), kinds.total())
    requested = quotas.quota_requests(plan)
    assert {kind: requested[f"count/{name}"] for kind, name in COUNTED.items()} == {
        kind: kinds[kind] for kind in COUNTED
    }


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_file_gives_the_committed_manifests(
    stack: str, request: pytest.FixtureRequest
) -> None:
    got = record(stack, stack_config(stack), secrets=SECRETS).manifests
    if request.config.getoption("--regenerate-golden"):
        (GOLDEN / f"{stack}.yaml").write_text(_rendered(got))
    _assert_same(got, _committed(stack), f"golden/{stack}.yaml")


def test_golden_files_and_stack_files_match() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.yaml")) == STACKS


@pytest.fixture(scope="module")
def pulumi_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield an environment with a real Pulumi and an empty state, without a cluster."""
    folder = tmp_path_factory.mktemp("pulumi")
    (folder / "state").mkdir()
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("pulumi-resource-kubernetes") is None:
        known = subprocess.run(
            [ROOT / "tests/cluster/env"], capture_output=True, text=True, check=False
        )
        found = re.search(r"export PATH=(.+):\$PATH", known.stdout)
        if found is None:
            message = "no Pulumi with a Kubernetes provider here: run tests/cluster/build"
            pytest.skip(message)
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{found[1]}{os.pathsep}{os.environ['PATH']}"
    yield {
        "PATH": path,
        "AIPERF_OWNER": os.environ["AIPERF_OWNER"],
        "HOME": str(folder),
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }
    shutil.rmtree(folder / "home", ignore_errors=True)


def _target_and_placement() -> dict[str, Any]:
    """Return a target with GPUs, a secret and prices, and pods with node selectors. One stack
    combines them, because an engine takes seconds for its start and checkpoints."""
    config = stack_config("bench-vllm")
    placed = stack_config("bench-spot")["aiperf:benchmark"]
    benchmark = config["aiperf:benchmark"]
    benchmark["endpoint"]["api_key_env"] = placed["endpoint"]["api_key_env"]
    deployment, others = benchmark["deployment"], placed["deployment"]
    away_from = deployment["pods"]["worker"].pop("placement")
    deployment["pods"]["worker"]["placement"] = {
        **others["pods"]["worker"]["placement"],
        **away_from,
    }
    deployment["pods"]["record-processor"] = others["pods"]["record-processor"]
    deployment["placement"] = others["placement"]
    return config


def test_real_pulumi_renders_the_recorded_manifests(
    pulumi_environment: dict[str, str], tmp_path: Path
) -> None:
    stack, config = "bench-real", _target_and_placement()
    project, rendered = tmp_path / "project", tmp_path / "rendered"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "infra", project / "infra", ignore=ignored)
    shutil.copy(ROOT / "Pulumi.yaml", project)
    (project / "stacks").mkdir()
    (project / "stacks" / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))
    environment = {**pulumi_environment, "AIPERF_RENDER_TO": str(rendered)}

    def pulumi(*args: str) -> str:
        done = subprocess.run(
            ["pulumi", "--non-interactive", "-C", project, *args],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return output

    pulumi("stack", "init", stack)
    secrets = [f"{key}={value}" for key, value in SECRETS.items()]
    pulumi("config", "set-all", *(part for each in secrets for part in ("--secret", each)))
    output = pulumi("up", "--yes", "--skip-preview", "--refresh=false")
    assert "is expected to have version" not in output, "another provider version is required"
    manifests = [
        _read_rendered(path, stack) for path in sorted((rendered / "1-manifest").iterdir())
    ]
    manifests.sort(key=lambda m: (m["kind"], m["metadata"]["name"]))
    _assert_same(manifests, record(stack, config, secrets=SECRETS).manifests, "recorded")
    _assert_holds_no_secret(Path(pulumi_environment["PULUMI_BACKEND_URL"].removeprefix("file://")))


def _read_rendered(path: Path, stack: str) -> Manifest:
    text = re.sub(
        rf"\baiperf-{stack}-[0-9a-f]{{8}}\b", f"aiperf-{stack}-{SUFFIX}", path.read_text()
    )
    manifest: dict[str, Any] = normalised(yaml.load(text, yaml.CSafeLoader))
    return manifest


def _assert_holds_no_secret(state: Path) -> None:
    forms = [v.encode() for v in SECRETS.values()]
    forms += [base64.b64encode(form) for form in forms]
    files = [path for path in state.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not [form for form in forms if form in data], f"a secret in clear in {path}"
