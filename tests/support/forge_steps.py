"""Runs the `run` steps of workflows and actions as a forge runner does, each in its own shell."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
ACTION = ROOT / ".github" / "actions" / "benchmark" / "action.yml"
_SHELLS = {"bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"), "": ("bash", "-e")}
"""The command line of each shell, and of the default shell."""
_FILES = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
_TIMEOUT_S = 600.0


@dataclass
class ForgeRunner:
    """Runs steps in order. A step sees the outputs, variables and paths of earlier steps."""

    folder: Path
    """Working directory of the steps."""
    files: Path
    """Folder of the runner's own files and of the steps' temporary files."""
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    known: dict[str, str] = field(default_factory=dict)
    """Values of expressions such as `github.actor`."""
    open_files: Sequence[int] = ()
    """File descriptors that the steps' commands inherit."""

    def run(self, step: Mapping[str, Any], shell: str = "") -> int:
        """Run a step and return its exit code. Raises KeyError for an unknown expression."""
        script = self.files / "step.sh"
        script.write_text(self.filled(step["run"]))
        own = {name: str(self.files / name) for name in (*_FILES, "RUNNER_TEMP")}
        for name in _FILES:
            Path(own[name]).touch()
        Path(own["RUNNER_TEMP"]).mkdir(exist_ok=True)
        step_variables = {
            name: self.filled(str(text)) for name, text in step.get("env", {}).items()
        }
        done = subprocess.run(
            (*_SHELLS[step.get("shell", shell)], str(script)),
            cwd=self.folder,
            env={**self.environ, **own, **step_variables},
            pass_fds=self.open_files,
            timeout=_TIMEOUT_S,
            check=False,
        )
        self.environ |= self._written("GITHUB_ENV")
        for path in (self.files / "GITHUB_PATH").read_text().splitlines():
            self.environ["PATH"] = f"{path}:{self.environ['PATH']}"
        for name, value in self._written("GITHUB_OUTPUT").items():
            self.known[f"steps.{step.get('id', '')}.outputs.{name}"] = value
        return done.returncode

    def run_job(self, workflow: str, job: str) -> dict[str, str]:
        """Run the `run` steps of a job and return its outputs. Fails at the first failing step."""
        document = yaml.safe_load((WORKFLOWS / workflow).read_text())
        found = document["jobs"][job]
        for each in (document, found):
            values = each.get("env", {}).items()
            self.environ |= {name: self.filled(str(text)) for name, text in values}
        shell = document.get("defaults", {}).get("run", {}).get("shell", "")
        for step in found["steps"]:
            if "run" in step:
                code = self.run(step, shell)
                assert code == 0, (code, step["run"])
        return {name: self.filled(text) for name, text in found.get("outputs", {}).items()}

    def filled(self, text: str) -> str:
        """Return a text with its expressions replaced by their values."""
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: self.known[match[1]], text)

    def _written(self, name: str) -> dict[str, str]:
        lines = (self.files / name).read_text().splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}


def action_steps(inputs: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the steps of the action, and the values of their expressions for these inputs."""
    action = yaml.safe_load(ACTION.read_text())
    defaults = {name: str(each.get("default", "")) for name, each in action["inputs"].items()}
    known = {f"inputs.{name}": value for name, value in (defaults | dict(inputs)).items()}
    return action["runs"]["steps"], {**known, "github.action_path": str(ACTION.parent)}
