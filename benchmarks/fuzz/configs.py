"""Mutates configs with a seed. Each must be accepted or rejected with an understandable message.

Invariants: `validate` exits with 0 or 2 and prints one line for each problem without a traceback.
An accepted config can be planned, locally and as a stack, or planning raises a ConfigError.
"""

import contextlib
import copy
import io
import random
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from aiperf_svc.cli.main import main
from aiperf_svc.config.load_config import STACK_KEY, load_config
from aiperf_svc.domain.errors import AiperfError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.stack import StackSettings
from aiperf_svc.plan.topology import Facts, plan
from aiperf_svc.workloads.stacks import plan_stack

STACKS = Path(__file__).parents[2] / "stacks"
MAX_LINE_LENGTH: Final = 600
"""Maximum length of one problem, because printed values are truncated."""
WRONG: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, 1e308, -0.0, float("nan"), float("inf"), "",
    " ", "x", "0", "-1", "1e400", "5m", "-5m", "5 m", "9" * 400, "NaN", "null", "🙂", "\x1b[31m",
    "\u202e", "a\nb", "../../etc/passwd", "${HOME}", "{}", "%s%n", "=1+1", "http://", "http://[::1",
    "http://a:99999", "https://u:p@h", "ftp://x", [], [None], ["x"] * 50, [[[[]]]], {}, {"": ""},
    {"x": {"y": {"z": []}}}, {1: 2}, "y" * 5_000,
)  # fmt: skip


def fuzz_configs(count: int, *, seed: int) -> list[str]:
    """Return the problems found in `count` mutated configs."""
    files = sorted(STACKS.glob("Pulumi.*.yaml"))
    bases = [yaml.safe_load(path.read_text())["config"][STACK_KEY] for path in files]
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = random.Random(f"{seed}/{number}")
            data = copy.deepcopy(rng.choice(bases))
            changes = [_change(rng, data) for _ in range(rng.choice((1, 1, 2, 4)))]
            path = Path(folder) / f"config-{number}.yaml"
            text = yaml.safe_dump(data, allow_unicode=True)
            if rng.random() < 0.1:
                text = _mutated(rng, text)
                changes.append("text changed")
            path.write_text(text, encoding="utf-8")
            problem = _check_file(path)
            if problem:
                problems.append(f"config {number} ({'; '.join(changes)}): {problem}")
            path.unlink()
    return problems


def _check_file(path: Path) -> str:
    """Validate the file and return what is wrong with the result, or an empty text."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["validate", str(path)])
    except Exception as error:  # any other exception is a finding
        return f"validate raised {type(error).__name__}: {error}"
    errors = err.getvalue()
    if code not in (ExitCode.OK, ExitCode.BAD_CONFIG) or "Traceback" in errors:
        return f"exit code {code}: {errors[:500]}"
    if code == ExitCode.BAD_CONFIG and not errors.startswith("error: "):
        return f"refused without an error: {errors[:500]!r}"
    long = [line for line in errors.splitlines() if len(line) > MAX_LINE_LENGTH]
    if long:
        return f"a line of {len(long[0])} characters: {long[0][:200]}"
    if any(ord(c) < 32 and c != "\n" for c in errors) or "\u202e" in errors:
        return f"control characters reach the terminal: {errors[:500]!r}"
    return _plan(path) if code == ExitCode.OK else ""


def _plan(path: Path) -> str:
    """Check that an accepted config can be planned, or is rejected with a ConfigError."""
    try:
        config = load_config(path)
        for facts in (Facts(where="local"), Facts(where="cluster")):
            plan(config, facts)
        plan_stack(config, StackSettings(stack="fuzz", version="0", image="registry/image:1"))
    except AiperfError:
        return ""
    except Exception as error:  # any other exception is a finding
        return f"accepted, and planning raised {type(error).__name__}: {error}"
    return ""


def _change(rng: random.Random, data: dict[str, Any]) -> str:
    """Change one place of a config and return a description."""
    places = list(_places(data))
    parent, key, path = rng.choice(places)
    match rng.randrange(5):
        case 0:
            del parent[key]
            return f"{path} left out"
        case 1 if isinstance(parent, dict):
            name = _renamed(rng, str(key))
            parent[name] = parent.pop(key)
            return f"{path} renamed {name!r}"
        case 2:
            other, from_key, from_path = rng.choice(places)
            if from_key in other if isinstance(other, dict) else from_key < len(other):
                parent[key] = copy.deepcopy(other[from_key])
            return f"{path} = {from_path}"
        case _:
            parent[key] = value = copy.deepcopy(rng.choice(WRONG))
            return f"{path} = {str(value)[:40]!r}"


def _places(value: Any, path: str = "") -> Any:
    """Return every key and index inside a value, with its container."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        key_path = f"{path}.{key}".lstrip(".")
        yield value, key, key_path
        if isinstance(value[key], dict | list):
            yield from _places(value[key], key_path)


def _renamed(rng: random.Random, key: str) -> str:
    at = rng.randrange(len(key) + 1)
    return rng.choice((key[:at] + key[at + 1 :], key[:at] + "x" + key[at:], key.upper(), "x" * 300))


def _mutated(rng: random.Random, text: str) -> str:
    """Return the text with some characters changed, like errors of an editor or a merge."""
    letters = list(text)
    for _ in range(rng.choice((1, 3, 10))):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice(
            ("", "\t", ":", "{", "}", "[", "'", '"', "&", "*", "!", "\0", "<<: ")
        )
    return "".join(letters)
