"""Puts the compiled steps (`compile_steps`) into the wheel, where a C compiler is there."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledSteps(BuildHookInterface[Any]):
    """Called by hatchling for a wheel and for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what the wheel then needs: this platform, any Python from 3.11 on."""
        root = Path(self.root)
        subprocess.run([sys.executable, root / "scripts" / "compile_steps.py"], check=True)
        libraries = [str(path.relative_to(root)) for path in root.glob("aiperf_svc/*/_*.abi3.so")]
        if libraries:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["artifacts"] += libraries
