"""Measure a server that this project did not write: llama.cpp's, with a file of prompts.

    python -m benchmarks.real_server [FLAGS OF aiperf-svc profile]

The first call makes an environment with the server (it compiles for about five minutes) and a small
model of random weights in the user's cache folder; later ones start within seconds.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aiperf-svc/real-server"
PACKAGES = ("llama-cpp-python[server]==0.3.36", "gguf==0.19.0", "tokenizers==0.23.3")
START_S, STOP_S = 60.0, 10.0
FLAGS = (
    *("--custom-dataset-type", "single_turn", "--input-file", str(HERE / "prompts.jsonl")),
    *("--streaming", "--concurrency", "1", "--request-count", "40", "--osl", "32"),
    *("--warmup-request-count", "4", "--model", "tiny"),
)


def made() -> tuple[Path, Path]:
    """The server's Python and the folder of the model, made if they are not there."""
    python, model = CACHE / "venv/bin/python", CACHE / "model"
    if not (CACHE / "complete").exists():
        print(f"making the server and the model in {CACHE}", file=sys.stderr)
        shutil.rmtree(CACHE, ignore_errors=True)
        venv.create(CACHE / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        subprocess.run([python, HERE / "make_model.py", model], check=True)
        (CACHE / "complete").touch()
    return python, model


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Until it lists its models. Raises SystemExit when it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=1):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.1)
    raise SystemExit(f"the server did not come up; see {CACHE / 'server.log'}")


def main() -> int:
    """Serve, measure, end the server; the exit code of the measurement."""
    python, model = made()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", str(port)]
    with (CACHE / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--model", str(model / "model.gguf")], stdout=log, stderr=log
        )
    try:
        wait_until_ready(server, url)
        flags = (*FLAGS, "--url", url, "--tokenizer", str(model), *sys.argv[1:])
        return subprocess.run([sys.executable, "-m", "aiperf_svc", "profile", *flags]).returncode
    finally:
        server.terminate()
        server.wait(STOP_S)


if __name__ == "__main__":
    sys.exit(main())
