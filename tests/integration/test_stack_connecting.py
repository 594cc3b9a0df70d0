"""A stack's run whose cluster has not responded yet."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import yaml

from aiperf_svc.domain.exit_codes import ExitCode

REPOSITORY = Path(__file__).parents[2]
STARTED_S, ENDED_S = 60.0, 20.0
"""The second limit is below the time to wait for a response."""


def test_ctrl_c_ends_waiting_for_a_silent_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(STARTED_S)
        kubeconfig = tmp_path / "kubeconfig"
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        content = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "there",
        }
        kubeconfig.write_text(yaml.safe_dump(content))
        # A run first looks for the Pulumi CLI, and contacts the cluster before it uses the CLI.
        programs = tmp_path / "bin"
        programs.mkdir()
        pulumi = programs / "pulumi"
        pulumi.write_text("#!/bin/sh\nexit 1\n")
        pulumi.chmod(0o755)
        mine = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
            "XDG_STATE_HOME": str(tmp_path),
            "PULUMI_CONFIG_PASSPHRASE": "x",
        }
        with subprocess.Popen(
            (sys.executable, "-m", "aiperf_svc", "run", "bench-smoke", "--yes"),
            cwd=REPOSITORY,
            env={**os.environ, **mine},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            try:
                with silent.accept()[0]:
                    command.send_signal(signal.SIGINT)
                    _, errors = command.communicate(timeout=ENDED_S)
            finally:
                command.kill()
    assert (command.returncode, "Traceback" in errors) == (ExitCode.INTERRUPTED, False), errors
