"""Each imported package is declared in pyproject.toml, and each declared package is imported.

An undeclared package is installed only as long as another package depends on it.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("aiperf_svc", "infra", "benchmarks", "scripts", "tests")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name for name in PROJECT["optional-dependencies"] if name != "dev"}
ELSEWHERE = {
    "aiperf_svc/workloads/mpi_pingpong/on_ranks": {"mpi4py"},
    "aiperf_svc/workloads/pytorch/on_ranks": {"torch", "torchvision"},
    "benchmarks/real_server/make_model.py": {"gguf"},
}
"""Packages of programs that run in other environments: images of ranks, and a model's."""
TOOLS = {"coverage", "editables", "import-linter", "mypy", "pre-commit", "py-spy"}
TOOLS |= {"pytest-xdist", "ruff", "types-pyyaml"}
"""Packages of `dev` that are run but not imported."""


def _modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


LOCAL = {*FOLDERS} | {path.stem for folder in ("infra", "tests") for path in _modules(folder)}
"""Top-level names of the project's own modules, as pytest and the Pulumi program import them."""


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _declared(*extras: str) -> set[str]:
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][each] for each in extras)]
    names = [re.match(r"[\w.-]+", each) for requirements in lists for each in requirements]
    return {_normalized(name[0]) for name in names if name}


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return the top-level name of each imported third-party module."""
    found = set()
    for node in _statements(ast.parse(path.read_text())):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        elif isinstance(call := getattr(node, "value", None), ast.Call) and _is_importorskip(call):
            names = [ast.literal_eval(each) for each in call.args]
        for name in names:
            first = name.partition(".")[0]
            if first not in sys.stdlib_module_names and first not in LOCAL:
                found.add(first)
    return frozenset(found)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements. Expressions, which are ten times as many, contain no imports."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(tree, field, ())
        for node in below if isinstance(below, list) else ():
            yield node
            yield from _statements(node)


def _is_importorskip(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "importorskip"


@cache
def _installed() -> Mapping[str, Sequence[str]]:
    return packages_distributions()


def _distributions(path: Path) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each imported module with the distributions that contain it."""
    relative = str(path.relative_to(ROOT))
    elsewhere = {
        m for place, names in ELSEWHERE.items() if relative.startswith(place) for m in names
    }
    for name in _imported(path):
        if name not in elsewhere:
            yield name, frozenset(map(_normalized, _installed().get(name, [name])))


@pytest.mark.parametrize("folder", FOLDERS)
def test_imported_packages_are_declared(folder: str) -> None:
    is_product = folder in ("aiperf_svc", "infra")
    declared = _declared(*EXTRAS, *(() if is_product else ("dev",)))
    undeclared = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _modules(folder)
        for name, distributions in _distributions(path)
        if not distributions & declared
    }
    assert not undeclared


def test_declared_packages_are_imported() -> None:
    imported = {
        distribution
        for folder in FOLDERS
        for path in _modules(folder)
        for _, distributions in _distributions(path)
        for distribution in distributions
    }
    assert _declared(*EXTRAS, "dev") - TOOLS <= imported


def test_every_lock_file_can_be_upgraded() -> None:
    makefile = (ROOT / "Makefile").read_text()
    flags = re.findall(r"^\t.*uv pip compile (\S+)", makefile, re.MULTILINE)
    locks = re.findall(r"-o (\S+\.lock)", makefile)
    assert flags == ["$(LOCK_FLAGS)"] * len(locks)
    assert {*locks, "scripts/pip.lock"} == {
        str(path.relative_to(ROOT))
        for folder in ("", "images", "images/runner", "scripts")
        for path in (ROOT / folder).glob("*.lock")
    }
