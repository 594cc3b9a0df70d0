"""llama.cpp's server and a small random model, which the first call creates in the cache folder."""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aiperf-svc/real-server"
PACKAGES = ("gguf==0.19.0", "tokenizers==0.23.3", "cmake==4.4.4", "ninja==1.13.2")
SOURCE = "llama-cpp-python==0.3.36"
"""Its source package contains all of llama.cpp, including the server."""
OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)
START_S, STOP_S = 60.0, 10.0
SERVER_FLAGS = ("--metrics", "--parallel", "4", "--ctx-size", "16384", "--alias", "tiny")


def made() -> tuple[Path, Path]:
    """Return the server and the model's folder, creating them if they are missing."""
    server, model = CACHE / "llama-server", CACHE / "model"
    if not (CACHE / "complete").exists():
        print(f"making the server and the model in {CACHE}", file=sys.stderr)
        shutil.rmtree(CACHE, ignore_errors=True)
        venv.create(CACHE / "venv", with_pip=True)
        python = CACHE / "venv/bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        subprocess.run([python, HERE / "make_model.py", model], check=True)
        compile_server(server)
        (CACHE / "complete").touch()
    return server, model


def compile_server(server: Path) -> None:
    """Compile llama.cpp's server from its sources."""
    programs = CACHE / "venv/bin"
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        download = ("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder)
        # pip generates the package's metadata with the package's own build tools.
        subprocess.run([programs / "python", "-m", "pip", *download, SOURCE], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (source,) = Path(folder).glob("*/vendor/llama.cpp")
        build = Path(folder) / "build"
        path = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        configure: list[str | Path] = ["cmake", "-S", source, "-B", build, "-G", "Ninja", *OPTIONS]
        subprocess.run(configure, check=True, env=path, stdout=subprocess.DEVNULL)
        compiling: list[str | Path] = ["cmake", "--build", build, "--target", "llama-server"]
        subprocess.run(compiling, check=True, env=path)
        shutil.copy2(build / "bin/llama-server", server)


def free_port() -> int:
    """Return a port of the loopback interface that is currently free."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def wait_until_ready(
    process: subprocess.Popen[bytes], url: str, log: Path, *, what: str = "server"
) -> None:
    """Wait until this URL responds. Raises SystemExit if the process ends or takes too long."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit(f"the {what} did not come up; see {log}")


@contextmanager
def serving(*flags: str | Path, name: str = "server") -> Iterator[str]:
    """Serve the small model on a free port with these server flags and yield its URL. `name` is
    that of its log in the cache folder."""
    program, model = made()
    port, log_file = free_port(), CACHE / f"{name}.log"
    url = f"http://127.0.0.1:{port}"
    where = ("--host", "127.0.0.1", "--port", str(port), "--model", str(model / "model.gguf"))
    with log_file.open("wb") as log:
        command = [program, *where, *SERVER_FLAGS, *flags]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until_ready(server, f"{url}/health", log_file)
        yield url
    finally:
        server.terminate()
        server.wait(STOP_S)
