"""Rules that import-linter and ruff cannot check: module names in strings, builtins that do I/O,
imports in functions, and names of tests."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [path.name for path in (ROOT / "aiperf_svc").iterdir() if path.is_dir()]
MODULE = re.compile(rf"(['\"])(aiperf_svc\.(?:{'|'.join(PACKAGES)})(?:\.[a-z_0-9]+)+(?::\w+)?)\1")
"""A string that consists of the name of one of our modules."""
DECIDING = ("domain", "plan", "core", "workloads")
"""Layers that do no I/O. `on_ranks` in `workloads` contains programs that run in ranks' images."""
IO_BUILTINS = {"open", "print", "input"}
MAX_IMPORTS_IN_FUNCTIONS = 120
"""Number of imports in functions. Lower it when you move one to the top of its module.
CONTRIBUTING.md lists valid reasons for one."""
IO_CALL = re.compile(rf"\b({'|'.join(IO_BUILTINS)})\(")
TEST_NAME = re.compile(r"^ *(?:async )?def test_(\w+)", re.MULTILINE)
MAX_WORDS = 8


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def exists(name: str) -> bool:
    module, _, attribute = name.partition(":")
    if not attribute:
        return find_spec(module) is not None
    source = find_spec(module)
    return source is not None and hasattr(__import__(module, fromlist=["_"]), attribute)


def test_modules_named_in_strings_exist() -> None:
    sources = (path.read_text() for path in modules("aiperf_svc", "infra"))
    names = {name for source in sources for _, name in MODULE.findall(source)}
    assert names, "none is named"
    assert [name for name in sorted(names) if not exists(name)] == []


def test_layers_that_decide_call_no_builtin_with_io() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}"
        for path in modules(*(f"aiperf_svc/{layer}" for layer in DECIDING))
        if "on_ranks" not in path.parts and IO_CALL.search(path.read_text())
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in IO_BUILTINS
    ]
    assert calls == []


def test_imports_in_functions_are_few() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules("aiperf_svc", "infra")
        for function in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(found) <= MAX_IMPORTS_IN_FUNCTIONS


def test_test_names_have_at_most_eight_words() -> None:
    names = [name for path in modules("tests") for name in TEST_NAME.findall(path.read_text())]
    assert "test_names_have_at_most_eight_words" in names
    assert [name for name in names if len(name.split("_")) > MAX_WORDS] == []
