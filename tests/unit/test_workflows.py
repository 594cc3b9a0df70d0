"""The scripts of the forge's workflows with fake programs."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import aiperf_svc
from aiperf_svc.stack.settings import PROVIDER_VERSION
from tests.support.forge_steps import ROOT, WORKFLOWS, ForgeRunner
from tests.support.system_tools import needs

EXPRESSIONS = {
    "github.server_url": "https://forge.example",
    "github.repository": "Owner/aiperf_svc",
    "github.repository_owner": "Owner",
    "needs.version.outputs.version": "1.2.3",
    "vars.IMAGE_REGISTRY": "registry.example",
    "vars.SITE_URL || format('https://{0}.github.io/{1}/', github.repository_owner, "
    "github.event.repository.name)": "https://owner.github.io/aiperf_svc/",
}


class Job:
    """A job's folder whose programs record their calls."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._log = folder / "bin", folder / "called"
        self.work, files = folder / "work", folder / "files"
        for each in (self._bin, self.work, files):
            each.mkdir()
        self._log.touch()
        environ = {
            **os.environ,
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CALLED": str(self._log),
            "GITHUB_ACTOR": "somebody",
        }
        self.runner = ForgeRunner(self.work, files, environ, dict(EXPRESSIONS))

    def replace(self, *names: str, body: str = "") -> None:
        """Put programs with these names first on PATH, or at these paths in the working folder."""
        for name in names:
            path = self.work / name if "/" in name else self._bin / name
            path.parent.mkdir(parents=True, exist_ok=True)
            line = f'echo "{path.name} $*" >>"$CALLED"'
            path.write_text(f"#!/bin/sh\n{line}\n{body}\n")
            path.chmod(0o755)

    @property
    def called(self) -> list[str]:
        """Return the calls so far, except package installations."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if "apt-get" not in line]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def scripts() -> Iterator[str]:
    """Yield the scripts of all workflows."""
    for path in WORKFLOWS.glob("*.yml"):
        for each in yaml.safe_load(path.read_text())["jobs"].values():
            yield from (step["run"] for step in each.get("steps", ()) if "run" in step)


def test_every_target_of_make_exists() -> None:
    named = {name for script in scripts() for name in re.findall(r"\bmake ([a-z-]+)", script)}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"check", "test", "package", "test-gate", "docs"} <= named <= targets


def test_tag_of_the_version_names_all_public_images(job: Job) -> None:
    needs("jq", "jq")
    job.runner.folder = ROOT
    job.runner.environ["GITHUB_REF_NAME"] = f"v{aiperf_svc.__version__}"
    outputs = job.runner.run_job("release.yml", "version")
    recipes = (ROOT / "images" / "workloads").glob("*/Containerfile")
    public = {each.parent.name for each in recipes if re.search("ARG BASE=.", each.read_text())}
    images = json.loads(outputs["images"])
    assert outputs["version"] == aiperf_svc.__version__
    assert images[:2] == ["services", "runner"]
    assert (set(images[2:]), len(images)) == (public, len(public) + 2)


def test_other_tag_is_not_released(job: Job) -> None:
    job.runner.folder = ROOT
    job.runner.environ["GITHUB_REF_NAME"] = "v0.0.0"
    with pytest.raises(AssertionError, match="GITHUB_REF_NAME"):
        job.runner.run_job("release.yml", "version")


@pytest.mark.parametrize(
    ("image", "setting"), [("services", "-"), ("runner", "RUNNER=1"), ("fio", "WORKLOAD=fio")]
)
def test_image_is_built_and_kept_as_an_archive(job: Job, image: str, setting: str) -> None:
    job.replace("sudo", "buildah")
    job.replace(
        "images/build",
        body='echo "${RUNNER:+RUNNER=1}${WORKLOAD:+WORKLOAD=$WORKLOAD}-" >>"$CALLED"\n'
        "echo progress; echo registry.example/built:1",
    )
    job.runner.known["matrix.image"] = image
    job.runner.run_job("release.yml", "images")
    archive = f"{job.runner.files}/RUNNER_TEMP/{os.uname().machine}.tar"
    assert job.called == [
        "build ",
        f"{setting.removesuffix('-')}-",
        f"buildah push registry.example/built:1 oci-archive:{archive}",
    ]


def test_image_that_cannot_be_built_ends_its_job(job: Job) -> None:
    job.replace("sudo", "buildah")
    job.replace("images/build", body="exit 1")
    job.runner.known["matrix.image"] = "services"
    with pytest.raises(AssertionError, match="images/build"):
        job.runner.run_job("release.yml", "images")
    assert job.called == ["build "]


@pytest.mark.parametrize(("image", "name"), [("services", ""), ("fio", "-fio")])
def test_archives_become_one_signed_image(job: Job, image: str, name: str) -> None:
    job.replace("sudo", "cosign")
    job.replace("buildah", body="case $* in *--digestfile*) printf sha256:0a >digest ;; esac")
    (job.work / "image").mkdir()
    for machine in ("aarch64", "x86_64"):
        (job.work / "image" / f"{machine}.tar").touch()
    job.runner.known["matrix.image"] = image
    job.runner.run_job("release.yml", "publish-images")
    whole = f"registry.example/owner/aiperf-svc{name}"
    expected = [
        "buildah manifest create release",
        "buildah manifest add release oci-archive:image/aarch64.tar",
        "buildah manifest add release oci-archive:image/x86_64.tar",
        f"buildah manifest push --all --digestfile digest release docker://{whole}:1.2.3",
        f"cosign sign --yes {whole}@sha256:0a",
    ]
    if image == "services":
        expected.append(
            f"cosign attest --yes --type cyclonedx --predicate image.cdx.json {whole}@sha256:0a"
        )
    assert job.called == expected
    known = job.runner.known
    assert known["steps.push.outputs.name"] == whole
    assert known["steps.push.outputs.digest"] == "sha256:0a"


def test_site_is_deployed_under_its_minor_version(job: Job) -> None:
    job.replace("git", "make", "build/docs/bin/mike")
    job.runner.run_job("release.yml", "site")
    config = "--config-file build/pages/mkdocs.yml --push"
    assert job.called[-3:] == [
        "make docs",
        f"mike deploy --update-aliases 1.2 latest {config}",
        f"mike set-default --allow-empty latest {config}",
    ]


def _renewed_locks(job: Job, git: str) -> list[str]:
    """Run the job with a stand-in for git, where no pull request is open; the calls."""
    job.replace("pipx", "make")
    job.replace("git", body=git)
    job.replace("gh", body='test "$2" != view')
    (job.work / "scripts").mkdir()
    lock = job.work / "scripts" / "package.lock"
    lock.write_text("tomli==2.4.0\nuv==1.2.3 \\\n    --hash=0a\n")
    job.runner.known["github.token"] = "of the job"
    job.runner.run_job("locks.yml", "locks")
    assert job.called[:2] == ["pipx install uv==1.2.3", "make lock LOCK_FLAGS=--upgrade"]
    return job.called[2:]


def test_newer_locks_become_a_tested_pull_request(job: Job) -> None:
    called = _renewed_locks(job, git='test "$1" != diff')
    assert called[-5:] == [
        "git commit -qam Take the newest versions of the locked packages",
        "git push --force origin locks",
        "gh pr view locks --json state --jq .state",
        "gh pr create --head locks --fill",
        "gh workflow run ci.yml --ref locks",
    ]


def test_current_locks_are_left_alone(job: Job) -> None:
    assert _renewed_locks(job, git="") == ["git diff --quiet"]


def _with_pulumi(job: Job) -> None:
    """Add the files with version numbers, and a fake Pulumi, to a job."""
    for name in ("images/runner/Containerfile", "aiperf_svc/stack/settings.py"):
        copy = job.work / name
        copy.parent.mkdir(parents=True)
        copy.write_text((ROOT / name).read_text())
    job.replace("sudo", "pulumi")


def test_forge_runs_the_tests_as_root(job: Job) -> None:
    _with_pulumi(job)
    job.replace("pipx", "find")
    job.runner.known["env.TOOLS"] = "openssl wrk"
    job.runner.run_job("ci.yml", "test")
    assert f"pulumi plugin install resource kubernetes {PROVIDER_VERSION}" in job.called
    path = job.runner.environ["PATH"]
    assert job.called[-2:] == [
        f"sudo git config --system --add safe.directory {job.work}",
        f"sudo --preserve-env env PATH={path} make test",
    ]


def test_cluster_gets_pinned_plugin_and_built_image(job: Job) -> None:
    _with_pulumi(job)
    job.replace("go")
    job.replace("make", body='echo "E2E_IMAGE=$E2E_IMAGE" >>"$CALLED"')
    job.replace("images/build", body="echo registry.example/built:1")
    job.runner.run_job("ci.yml", "cluster")
    called = job.called
    assert f"pulumi plugin install resource kubernetes {PROVIDER_VERSION}" in called
    assert [line for line in called if "load docker-image registry.example/built:1" in line]
    assert called[-2:] == ["make test-gate", "E2E_IMAGE=registry.example/built:1"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", job.runner.known["steps.pulumi.outputs.version"])
