"""The image's name and lock file. Building it is for the tests on a cluster."""

import re
import subprocess

from recording import ROOT

import aiperf_svc


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


def test_the_name_says_version_and_content_and_is_the_same_twice() -> None:
    version = re.escape(aiperf_svc.__version__)
    name = _tag()
    assert re.fullmatch(rf"localhost/aiperf-svc:{version}-[0-9a-f]{{12}}", name)
    assert _tag(IMAGE_REPOSITORY="registry.example/x").startswith("registry.example/x:")
    assert _tag() == name


def test_another_base_is_another_image() -> None:
    names = {_tag(), _tag(BASE="registry.example/python:3.12"), _tag(BASE="debian:13")}
    assert len(names) == 3


def test_the_image_has_the_versions_that_the_tests_run_with() -> None:
    pins = _pins("images/requirements.lock")
    assert pins
    assert pins <= _pins("requirements.lock")
    assert not [pin for pin in pins if pin.startswith(("pulumi", "pytest", "mypy"))]
