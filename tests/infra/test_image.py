"""The image's name and lock file. Tests on a cluster build the image."""

import re
import subprocess
from pathlib import Path

import pytest

import aiperf_svc
from aiperf_svc.adapters.host import build
from aiperf_svc.adapters.pulumi.project import find_program
from aiperf_svc.stack.settings import PROVIDER_VERSION
from aiperf_svc.workloads.tool import default_image
from tests.support.recording import ROOT


def _tag(**environ: str) -> str:
    done = subprocess.run(
        [ROOT / "images/tag"],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _pins(path: str) -> set[str]:
    return set(re.findall(r"^(\S+==\S+)", (ROOT / path).read_text(), re.MULTILINE))


def test_image_name_has_version_and_content() -> None:
    version = re.escape(aiperf_svc.__version__)
    name = _tag()
    assert re.fullmatch(rf"localhost/aiperf-svc:{version}-[0-9a-f]{{12}}", name)
    assert _tag(IMAGE_REPOSITORY="registry.example/x").startswith("registry.example/x:")
    assert _tag() == name


def test_another_base_is_another_image() -> None:
    names = {_tag(), _tag(BASE="registry.example/python:3.12"), _tag(BASE="debian:13")}
    assert len(names | {_tag(PULUMI="registry.example/pulumi:3")}) == 4


BASE = "registry.example/python:3.12@sha256:" + "0a" * 32


def _build(folder: Path, **environ: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the build script with a fake tool that records its arguments."""
    tool, arguments = folder / "tool", folder / "asked"
    tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{arguments}\n')
    tool.chmod(0o700)
    path = {"PATH": f"{folder}:/usr/bin:/bin", "CONTAINER_TOOL": "tool"}
    done = subprocess.run(
        [ROOT / "images/build"], env=path | environ, capture_output=True, text=True, check=False
    )
    return done, arguments.read_text().splitlines() if arguments.exists() else []


def test_pinned_base_is_written_into_image(tmp_path: Path) -> None:
    done, arguments = _build(tmp_path, BASE=BASE, REQUIRE_DIGESTS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert {f"BASE={BASE}", f"BUILDER={BASE}"} <= set(arguments)
    assert f"org.opencontainers.image.base.name={BASE}" in arguments
    assert f"org.opencontainers.image.base.digest=sha256:{'0a' * 32}" in arguments


def test_image_has_version_and_commit(tmp_path: Path) -> None:
    _, arguments = _build(tmp_path, BASE=BASE)
    assert f"org.opencontainers.image.version={aiperf_svc.__version__}" in arguments
    (revision,) = (
        each for each in arguments if each.startswith("org.opencontainers.image.revision=")
    )
    commit = revision.partition("=")[2]
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert f"COMMIT={commit}" in arguments
    recipe = (ROOT / "images" / "Containerfile").read_text()
    assert f"/build/commit /opt/aiperf/app/aiperf_svc/{build.COMMIT}\n" in recipe
    assert not any("image.source" in each for each in arguments)
    (tmp_path / "asked").unlink()
    _, arguments = _build(tmp_path, WORKLOAD="iperf", REPOSITORY_URL="https://forge.example/o/x")
    assert "org.opencontainers.image.source=https://forge.example/o/x" in arguments
    assert not any(each.startswith("COMMIT=") for each in arguments)


def _kind(recipe: Path) -> str:
    return recipe.parent.name


@pytest.mark.parametrize("recipe", sorted(ROOT.glob("images/**/Containerfile")), ids=_kind)
def test_every_image_has_its_title(recipe: Path) -> None:
    kind = _kind(recipe)
    title = "aiperf-svc" if kind == "images" else f"aiperf-svc-{kind}"
    assert f'org.opencontainers.image.title="{title}"' in recipe.read_text()


def test_tagged_base_is_noted_or_refused(tmp_path: Path) -> None:
    done, arguments = _build(tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("pin it as NAME@sha256:DIGEST") == 2
    assert not any("base.digest" in each for each in arguments)
    (tmp_path / "asked").unlink()
    refused, arguments = _build(tmp_path, BASE=BASE, BUILDER="python:3.12", REQUIRE_DIGESTS="1")
    assert (refused.returncode, arguments) == (1, [])
    assert "error: REQUIRE_DIGESTS is set and python:3.12 has none" in refused.stderr


def test_resolved_tags_are_built_by_their_digests(tmp_path: Path) -> None:
    skopeo = tmp_path / "skopeo"
    skopeo.write_text(f"#!/bin/sh\necho sha256:{'0c' * 32}\n")
    skopeo.chmod(0o700)
    done, arguments = _build(tmp_path, RESOLVE_DIGESTS="1", REQUIRE_DIGESTS="1")
    base = f"docker.io/library/python:3.12-slim-bookworm@sha256:{'0c' * 32}"
    assert (done.returncode, f"BASE={base}" in arguments) == (0, True)
    assert f"org.opencontainers.image.base.digest=sha256:{'0c' * 32}" in arguments
    assert done.stdout.splitlines()[-1] == _tag(BASE=base, BUILDER=base.replace("-slim", ""))
    skopeo.write_text("#!/bin/sh\nexit 1\n")
    assert _build(tmp_path, RESOLVE_DIGESTS="1")[0].returncode == 1


def test_workload_image_has_the_rank_name(tmp_path: Path) -> None:
    done, arguments = _build(tmp_path, WORKLOAD="iperf", IMAGE_REPOSITORY="registry.example/x")
    name = f"registry.example/x-iperf:{aiperf_svc.__version__}"
    assert done.stdout.splitlines()[-1] == name
    assert arguments[:5] == [
        "build",
        "--file",
        "images/workloads/iperf/Containerfile",
        "--tag",
        name,
    ]
    assert not any(each.startswith("BUILDER=") for each in arguments)
    done, _ = _build(tmp_path, WORKLOAD="fio")
    assert done.stdout.splitlines()[-1] == default_image("fio", aiperf_svc.__version__)


@pytest.mark.parametrize(
    ("workload", "message"), [("iprf", "kinds with an image: fio iperf"), ("nccl", "BASE=...")]
)
def test_workload_without_recipe_is_refused(tmp_path: Path, workload: str, message: str) -> None:
    done, arguments = _build(tmp_path, WORKLOAD=workload)
    assert (done.returncode, arguments) == (1, [])
    assert message in done.stderr


def test_runner_image_is_built_from_services_image(tmp_path: Path) -> None:
    digest = "registry.example/pulumi:3@sha256:" + "0b" * 32
    done, arguments = _build(
        tmp_path,
        BASE=BASE,
        RUNNER="1",
        PULUMI=digest,
        REQUIRE_DIGESTS="1",
        IMAGE_REPOSITORY="r.io/x",
    )
    name = done.stdout.splitlines()[-1]
    assert name.startswith(f"r.io/x-runner:{aiperf_svc.__version__}-")
    second = arguments[arguments.index("images/runner/Containerfile") :]
    assert f"SERVICES={name.replace('-runner', '')}" in second
    assert {f"BUILDER={BASE}", f"PULUMI={digest}", name} <= set(second)


def test_tagged_pulumi_is_refused_before_the_build(tmp_path: Path) -> None:
    refused, arguments = _build(tmp_path, BASE=BASE, RUNNER="1", PULUMI="p:3", REQUIRE_DIGESTS="1")
    assert (refused.returncode, arguments) == (1, [])
    assert refused.stderr.splitlines()[-1] == "error: REQUIRE_DIGESTS is set and p:3 has none"


def test_runner_image_has_the_program_beside_the_package() -> None:
    program = find_program()
    recipe = (ROOT / "images" / "runner" / "Containerfile").read_text()
    for path in (program.infra, program.project_file):
        name = path.relative_to(ROOT).as_posix()
        assert f"COPY {name} /opt/aiperf/app" in recipe


def test_runner_image_has_tested_versions() -> None:
    pins = _pins("images/runner/requirements.lock")
    assert pins >= _pins("images/requirements.lock")
    assert pins <= _pins("requirements.lock")
    assert any(pin.startswith("pulumi-kubernetes==") for pin in pins)


def test_runner_image_has_the_provider_of_the_program() -> None:
    recipe = (ROOT / "images" / "runner" / "Containerfile").read_text()
    assert f"ARG PROVIDER={PROVIDER_VERSION}\n" in recipe
    assert f"pulumi-kubernetes=={PROVIDER_VERSION}" in _pins("images/runner/requirements.lock")


def test_runner_image_has_the_tested_cli() -> None:
    recipe = (ROOT / "images" / "runner" / "Containerfile").read_text()
    (version,) = re.findall(r"^ARG PULUMI=\S+:(\S+)$", recipe, re.MULTILINE)
    module = (ROOT / "tests" / "cluster" / "tools" / "pulumi-cli" / "go.mod").read_text()
    assert f"github.com/pulumi/pulumi/pkg/v3 v{version}\n" in module


def test_image_has_tested_versions() -> None:
    pins = _pins("images/requirements.lock")
    assert pins
    assert pins <= _pins("requirements.lock")
    assert not [pin for pin in pins if pin.startswith(("pulumi", "pytest", "mypy"))]


@pytest.mark.parametrize("recipe", ["images/Containerfile", "images/runner/Containerfile"])
def test_copied_files_are_in_context_and_tag(recipe: str) -> None:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / recipe).read_text(), re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    context = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    (hashed,) = re.findall(r"find (.+?) -name", (ROOT / "images/tag").read_text())
    for roots in (context, hashed.split()):
        assert not {name for name in copied if not name.startswith(tuple(roots))}
