"""The example package in "Add a kind" of docs/workloads.md, and its Containerfile."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.stack.commands import PROJECT

PAGE = PROJECT / "docs/workloads.md"


def package_files() -> list[tuple[str, str]]:
    """Return names and contents of the package's files."""
    return re.findall(r"^`([a-z_.]+)`:\n\n```\w+\n(.*?)```", PAGE.read_text(), re.M | re.S)


def containerfile(image: str) -> str:
    """Return the Containerfile that adds the package to a service image."""
    (text,) = re.findall(r"^```\n(FROM \S+\nCOPY kinds .*?)```", PAGE.read_text(), re.M | re.S)
    return re.sub(r"FROM \S+", f"FROM {image}", text)


def install(source: Path, site: Path) -> None:
    """Write the package into `source` and install it into `site`."""
    for name, text in package_files():
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    flags = ["--no-index", "--no-build-isolation", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, *flags, str(source)], check=True, timeout=120)
