"""The reference: `wrk`, a load generator in C (Debian package `wrk`) that sends the same requests.

wrk counts responses and does nothing else, so it shows the limit of this machine, kernel and
server.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

MISSING = "wrk is not installed (Debian package: wrk); there is no other reference"
PROMPT_WORDS = 50
_RATE = re.compile(r"Requests/sec:\s*([\d.]+)")
_COUNT = re.compile(r"(\d+) requests in")


class WrkRun(NamedTuple):
    """Figures of a wrk run."""

    requests_per_s: float
    cpu_us_per_request: float


def is_installed() -> bool:
    """Return whether the command is installed."""
    return shutil.which("wrk") is not None


def chat_body(model: str) -> str:
    """Return a streaming chat request in our client's wording, with a prompt of about 50 tokens."""
    prompt = " ".join("w" * (3 + i % 5) for i in range(PROMPT_WORDS))
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        separators=(",", ":"),
    )


def run_wrk(url: str, *, concurrency: int, duration_s: float, folder: Path) -> WrkRun:
    """Streaming chat requests over `concurrency` connections, one thread, for `duration_s`: whole
    seconds, or less than one.

    Raises RuntimeError with wrk's output when it reports errors or no rate.
    """
    script = folder / "request.lua"
    script.write_text(
        'wrk.method = "POST"\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
        'wrk.headers["Accept"] = "text/event-stream"\n'
        f"wrk.body = [==[{chat_body('mock-model')}]==]\n"
    )
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{max(1, round(duration_s))}s", "-s"]
    process = subprocess.Popen(
        [*command, str(script), f"{url}/v1/chat/completions"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        if duration_s < 1:
            # wrk takes whole seconds; SIGINT ends it, and it prints its results.
            time.sleep(duration_s)
            os.kill(process.pid, signal.SIGINT)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    rate, count = _RATE.search(output), _COUNT.search(output)
    if process.returncode or not rate or not count or "Non-2xx" in output:
        raise RuntimeError(f"wrk failed:\n{output}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return WrkRun(float(rate[1]), cpu_s / max(1, int(count[1])) * 1e6)
