"""A CronJob runs a stack from the runner's image, with state and results in buckets. The next run
takes over after its pod died."""

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aiperf_svc.core.cluster.lease import HELD_S
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.bucket import BUCKET, KEYS, Store
from tests.support.running_command import FINISHED, wait_for
from tests.support.stack.commands import PROJECT, run
from tests.support.stack.real_cluster import TOOLS, Cluster
from tests.support.stack.real_runner import Runner, processes_with
from tests.support.stack.real_stack import PASSPHRASE, Config

pytestmark = pytest.mark.cluster

PLUGINS = ("pulumi", "pulumi-language-python", "pulumi-language-python-exec",
           "pulumi-resource-kubernetes")  # fmt: skip
BUILD_S = 900.0
START_S, RUN_S = 90.0, 400.0
"""Time limit for a CronJob to start a Job, and for a run."""
SECRETS = {"PULUMI_CONFIG_PASSPHRASE": PASSPHRASE, **KEYS}


@pytest.fixture(scope="module")
def runner_image(cluster: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the runner's image next to that of the services, from the users' Containerfile with a
    Pulumi that the tests built."""
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, and the runner's image would need a registry")
    folder = tmp_path_factory.mktemp("pulumi")
    for name in PLUGINS:
        found = shutil.which(name, path=cluster.environ["PATH"])
        assert found, name
        shutil.copy(found, folder)
    (folder / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY pulumi* /usr/local/bin/\n")
    repository, _, tag = image.rpartition(":")
    name, pulumi = f"{repository}-runner:{tag}", "localhost/aiperf-pulumi:1"
    build = (str(TOOLS / "build-image"), str(folder / "Containerfile"), str(folder), pulumi, "-")
    run(build, environ=cluster.environ, timeout_s=BUILD_S)
    recipe = PROJECT / "images" / "runner" / "Containerfile"
    arguments = ("--build-arg", f"SERVICES={image}", "--build-arg", f"PULUMI={pulumi}")
    cluster.add_image(name, recipe, PROJECT, *arguments)
    return name


class Scheduled:
    """A stack with a CronJob in another owner's namespace."""

    def __init__(self, runner: Runner, namespace: str, store: Store) -> None:
        self.runner, self.cluster, self.namespace = runner, runner.cluster, namespace
        self.name = f"schedule-{runner.name}"
        self.state = (
            f"s3://{BUCKET}/state?endpoint={urlsplit(store.url).netloc}&disableSSL=true"
            "&s3ForcePathStyle=true&region=us-east-1"
        )

        def nightly(benchmark: Config) -> None:
            bucket = {"url": f"s3://{BUCKET}/nightly", "endpoint_url": store.url}
            benchmark["artifacts"] = {"s3": bucket}
            benchmark["deployment"]["namespace"] = {"name": namespace, "mode": "existing"}

        runner.change(nightly)
        values = (f"--from-literal={name}={value}" for name, value in SECRETS.items())
        self.kubectl("create", "secret", "generic", f"aiperf-{runner.name}", *values)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the namespace and return its output."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, timeout_s=120.0)

    def objects(self, kind: str) -> list[Config]:
        """Return the objects of this kind in the namespace."""
        return self.cluster.objects(kind, "-n", self.namespace)

    def apply(self, cron: str, *flags: str) -> str:
        """Run `schedule --apply` and return its output."""
        flags = ("--cron", cron, "--state", self.state, "--apply", *flags)
        ended = self.runner.call("schedule", self.runner.name, *flags)
        assert ended.code == ExitCode.OK, ended.errors
        return ended.errors

    def cron_job(self) -> Config:
        """Return the spec of the CronJob."""
        (found,) = self.objects("cronjobs")
        spec: Config = found["spec"]
        return spec

    def start(self, job: str) -> None:
        """Start a run like the CronJob does."""
        self.kubectl("create", "job", job, f"--from=cronjob/{self.name}")

    def pod(self, job: str) -> Config | None:
        """Return the pod of a Job if it exists."""
        for each in self.objects("pods"):
            if each["metadata"]["labels"].get("batch.kubernetes.io/job-name") == job:
                return each
        return None

    def log(self, job: str) -> str:
        """Return the output of a Job's runner so far."""
        pod = self.pod(job)
        if pod is None or pod["status"]["phase"] == "Pending":
            return ""
        return self.kubectl("logs", pod["metadata"]["name"])

    def end(self, job: str) -> tuple[int, str]:
        """Wait for a Job's runner to end and return its exit code and output."""
        wait_for(lambda: self.has_ended(job), RUN_S, tell=lambda: self.log(job))
        pod = self.pod(job)
        assert pod is not None
        (container,) = pod["status"]["containerStatuses"]
        return container["state"]["terminated"]["exitCode"], self.log(job)

    def has_ended(self, job: str) -> bool:
        """Return whether a Job has completed or failed."""
        (found,) = (each for each in self.objects("jobs") if each["metadata"]["name"] == job)
        conditions = found["status"].get("conditions", ())
        return any(each["type"] in ("Complete", "Failed") for each in conditions)

    def is_held(self) -> bool:
        """Return whether a runner has renewed its Lease of the stack recently."""
        renewed = (each["spec"].get("renewTime") for each in self.objects("leases"))
        limit = datetime.now(UTC) - timedelta(seconds=HELD_S + 1)
        return any(datetime.fromisoformat(stamp) > limit for stamp in renewed if stamp)

    def remove(self) -> None:
        """Delete what `--apply` created, as the documentation describes it."""
        kinds = "cronjob,job,configmap,serviceaccount,role,rolebinding,clusterrole"
        labels = "app.kubernetes.io/component=schedule,app.kubernetes.io/instance="
        self.kubectl("delete", f"{kinds},clusterrolebinding", "-l", labels + self.runner.name)


@pytest.fixture
def scheduled(
    make_runner: Callable[[], Runner], runner_image: str, owners_namespace: str, store: Store
) -> Iterator[Scheduled]:
    """Make a stack with a schedule and check afterwards that nothing is left."""
    found = Scheduled(make_runner(), owners_namespace, store)
    found.runner.environ["AIPERF_RUNNER_IMAGE"] = runner_image
    yield found
    found.remove()


def uploaded_to(log: str) -> str:
    """Return the folder of the bucket to which the run of this log uploaded its results."""
    (folder,) = re.findall(rf"^Uploaded: s3://{BUCKET}/(nightly/\S+)$", log, re.MULTILINE)
    return str(folder)


def check_results(scheduled: Scheduled, store: Store) -> set[str]:
    """Check that the bucket has complete results and that cluster and state are empty. Return the
    folders of the runs with results."""
    names = store.names()
    folders = {
        each.removesuffix("manifest.json") for each in names if each.endswith("/manifest.json")
    }
    for folder in folders:
        manifest = json.loads(store.read(f"{folder}manifest.json"))
        listed = {each["name"] for each in manifest["files"]}
        assert {"profile_export_aiperf.json", "records.parquet"} <= listed
        assert {folder + name for name in listed} <= set(names)
    assert not any("/.pulumi/locks/" in each for each in names)
    assert scheduled.cluster.left_of(scheduled.runner.name) == []
    return folders


def test_cron_job_runs_a_stack_and_leaves_nothing(scheduled: Scheduled, store: Store) -> None:
    output = scheduled.apply("0 3 * * *", "--time-zone", "Europe/Berlin")
    assert f"created CronJob {scheduled.name}\n" in output
    assert scheduled.cron_job()["timeZone"] == "Europe/Berlin"
    output = scheduled.apply("* * * * *")
    assert "created" not in output
    assert "timeZone" not in scheduled.cron_job()
    wait_for(lambda: bool(scheduled.objects("jobs")), START_S, tell=lambda: "no Job has begun")
    scheduled.kubectl("patch", "cronjob", scheduled.name, "-p", '{"spec": {"suspend": true}}')
    (job,) = (each["metadata"]["name"] for each in scheduled.objects("jobs"))
    code, log = scheduled.end(job)
    print(log)
    assert code in FINISHED, log
    assert f"s3://{BUCKET}/nightly/" in log
    assert "may reach every address" not in log
    assert check_results(scheduled, store) == {uploaded_to(log)}
    scheduled.apply("0 3 * * *")
    assert scheduled.cron_job()["suspend"] is True


def test_next_run_takes_over_from_a_dead_pod(scheduled: Scheduled, store: Store) -> None:
    scheduled.apply("0 3 * * *")
    scheduled.start("first")
    stack, cluster = scheduled.runner.name, scheduled.cluster
    wait_for(
        # Preflight also creates pods but holds no lock.
        lambda: bool(cluster.pods_of(stack, "deadline")),
        RUN_S,
        tell=lambda: scheduled.log("first"),
    )
    assert any("/.pulumi/locks/" in each for each in store.names())
    pod = scheduled.pod("first")
    assert pod is not None
    name = pod["metadata"]["name"]
    # Simulates a lost node. On SIGTERM, the runner would collect its results and release the lock.
    for pid in processes_with(Path(f"HOSTNAME={name}")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    scheduled.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    wait_for(lambda: scheduled.has_ended("first"), START_S, tell=lambda: "the Job goes on")
    wait_for(lambda: not scheduled.is_held(), START_S, tell=lambda: "the Lease is held")
    scheduled.start("second")
    code, log = scheduled.end("second")
    print(log)
    assert "removing the lock of a process that has ended (" in log
    assert code in FINISHED, log
    # The stack of the dead pod may have uploaded its results before its removal.
    folders = check_results(scheduled, store)
    assert uploaded_to(log) in folders
    assert len(folders) <= 2
