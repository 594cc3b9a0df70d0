"""What is compiled exists."""

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[3] / "scripts" / "compile_core.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_core", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_module_that_is_compiled_exists_and_is_named_once() -> None:
    modules = script().MODULES
    assert len(set(modules)) == len(modules)
    assert [m for m in modules if not (script().ROOT / "aiperf_svc" / m).is_file()] == []
