"""Replaces `aiperf-svc service` in tests of the launcher. STUB selects the behaviour.

The process with the records manager serves the real results API for a run that takes no time. The
others behave as configured: they end with the run, die, ignore signals, or leave something behind.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from aiperf_svc.adapters.exports.result_files import Results
    from aiperf_svc.adapters.results_api.status import Status

PLAY = os.environ["STUB"]
STATE = Path(os.environ["AIPERF_STATE_DIR"])
ARTIFACTS = Path(os.environ["AIPERF_ARTIFACTS"])
PARENT = int(os.environ["AIPERF_PARENT_PID"])
SUMMARY = b'{"request_count":{"unit":"requests","avg":3.0},"aiperf_svc":{"verdict":"valid"}}'


class Run:
    """A run that advances each time its status is read."""

    def __init__(self, ended: "asyncio.Event") -> None:
        self.number = 0
        self.reason = ""
        self.is_cancelled = False
        self.ended = ended

    def status(self) -> "Status":
        from aiperf_svc.adapters.results_api.status import Status

        self.number += 1
        state = self._state()
        is_final = state in ("done", "failed", "cancelled")
        values: dict[str, Any] = dict.fromkeys(Status.__struct_fields__, 0)
        values |= {
            "finish_reasons": {},
            "objectives": (),
            "steps": None,
            "experiment": None,
            "client": None,
        }
        values |= {"phase": "profiling", "message": "", "dataset": {}, "verdict": "valid"}
        values |= {"requested_requests": None, "requested_duration_s": None}
        values |= {"ttft_p50_ms": None, "ttft_p99_ms": None, "latency_p50_ms": None}
        values |= {"is_cancelling": self.is_cancelled, "artifact_error": ""}
        values |= {"uploaded_to": "", "main_error": ""}
        values |= {"number": self.number, "state": state, "reason": self.reason, "exit_code": 3}
        values |= {"results_ready": is_final and state != "failed", "is_settled": is_final}
        return Status(**values)

    def _state(self) -> str:
        if PLAY == "bad start":
            return "pending"
        if self.number == 1:
            return "profiling"
        if PLAY == "failed run":
            self.reason = "the target is not there"
            return "failed"
        if PLAY == "interrupted" and not self.is_cancelled:
            if self.number == 2:
                os.kill(PARENT, signal.SIGINT)
            return "profiling"
        if PLAY == "left at once":
            if self.number == 2 or self.is_cancelled:
                os.kill(PARENT, signal.SIGINT)
            return "profiling"
        if PLAY == "lost worker":
            announce("profiling")
            # The process disappears from /proc only after the launcher has reaped it.
            return "profiling" if Path("/proc", wait_for("worker")).exists() else "done"
        if PLAY == "control dies" and self.number == 3:
            print("out of luck", flush=True)
            os._exit(7)
        if PLAY == "control dies":
            return "profiling"
        return "cancelled" if self.is_cancelled else "done"

    async def wait_change(self, after: int, timeout_s: float) -> None:
        pass

    def cancel(self, reason: str) -> None:
        self.is_cancelled, self.reason = True, reason

    def collected(self) -> None:
        self.ended.set()

    def results(self) -> "Results":
        from aiperf_svc.adapters.exports.result_files import decode

        return decode(SUMMARY)

    def folder(self) -> Path:
        return ARTIFACTS


def run_control() -> None:
    # Imported here: two of three processes do not need them, and imports dominate the startup.
    import asyncio

    from aiperf_svc.adapters.results_api.local_socket import LocalResultsServer

    async def serve() -> None:
        run = Run(asyncio.Event())
        server = LocalResultsServer(run)  # type: ignore[arg-type]
        await server.listen(Path(os.environ["AIPERF_RESULTS_SOCKET"]))
        await run.ended.wait()
        await server.close()

    if PLAY in ("stubborn worker", "grandchild"):
        (ARTIFACTS / "left").write_text(wait_for("ready"))
    asyncio.run(serve())


def run_worker() -> int:
    match PLAY:
        case "bad start":
            print("cannot read the config", file=sys.stderr)
            return 2
        case "lost worker":
            announce("worker", str(os.getpid()))
            wait_for("profiling")
            return 9
        case "stubborn worker":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            announce("ready")
        case "grandchild":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            announce("ready", str(child.pid))
    while True:
        signal.pause()


def announce(name: str, content: str = "") -> None:
    """Create a file for the other processes atomically."""
    part = STATE / f"{name}.part"
    part.write_text(content)
    part.rename(STATE / name)


def wait_for(name: str) -> str:
    """Wait until another process announces it."""
    while not (STATE / name).exists():
        time.sleep(0.01)
    return (STATE / name).read_text()


if __name__ == "__main__":
    if "records-manager" in sys.argv:
        if PLAY == "run" and ARTIFACTS.is_dir():
            (ARTIFACTS / "results").touch()
        run_control()
    elif "worker" in sys.argv:
        sys.exit(run_worker())
    else:
        signal.pause()
