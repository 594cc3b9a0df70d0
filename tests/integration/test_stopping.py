"""Effects of a signal on the program at any time, with real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.plan.pods import GRACE_S
from aiperf_svc.runner.process_placement import KILL_S
from aiperf_svc.services import host

WAIT_S = 60.0
NEVER_ENDS = """
print("here", flush=True)
while True:
    pass
"""
SERVES = """
import asyncio, sys, time
from aiperf_svc.protocol.services import Service
from aiperf_svc.plan.pods import GRACE_S
from aiperf_svc.runner.process_placement import KILL_S
from aiperf_svc.services import host

class Stuck:
    id = "stuck"
    def __init__(self, context, bus):
        self.finished = asyncio.Event()
    async def run(self):
        print("here", flush=True)
        {body}
    async def close(self):
        pass

class NoBus:
    async def start(self): pass
    async def close(self, *, linger_ms): pass

class Config:
    experiment, kind = None, "inference"

class Context:
    run_id, instance, ends_with_run, config = "run", "stuck", True, Config

host.read_context = Context
host.make_bus = lambda context: NoBus()
host._share_cores = lambda context, names: None
host._may_stay_prompt = lambda context, names: False
host.service_class = lambda name, **_: Stuck
host.STOP_S = float(sys.argv[1])
sys.exit(host.run_services([Service.WORKER]))
"""


@contextmanager
def started(*arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has printed `here`."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("arguments", "module"),
    [(("service", "worker"), "uvloop"), (("deadline",), "ssl"), (("profile",), "argparse")],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_stop_during_imports_ends_the_program_silently(
    tmp_path: Path, arguments: tuple[str, ...], module: str, number: signal.Signals
) -> None:
    (tmp_path / f"{module}.py").write_text(NEVER_ENDS)
    with started("-m", "aiperf_svc", *arguments, PYTHONPATH=str(tmp_path)) as process:
        process.send_signal(number)
        assert process.communicate(timeout=WAIT_S) == ("", "")
        assert process.returncode == ExitCode.INTERRUPTED


def test_stopped_service_ends_in_order() -> None:
    code = SERVES.format(body="await asyncio.Event().wait()")
    with started("-c", code, "3600") as process:
        process.terminate()
        assert process.communicate(timeout=WAIT_S) == ("", "")
        assert process.returncode == ExitCode.OK


@pytest.mark.parametrize(
    "body",
    ["time.sleep(3600)", "await asyncio.to_thread(time.sleep, 3600)"],
    ids=["its loop", "a thread"],
)
def test_stuck_service_is_ended_with_its_location(body: str) -> None:
    code = SERVES.format(body=body)
    with started("-c", code, "0.1") as process:
        process.terminate()
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == ExitCode.ERROR
    assert "still busy 0.1 s after the request to stop: the process is ended" in errors
    assert "most recent call first" in errors


def test_library_panic_ends_process_with_an_error() -> None:
    panic = 'type("PanicException", (BaseException,), {})("no driver")'
    code = SERVES.format(body=f'raise BaseExceptionGroup("tasks", [{panic}])')
    with started("-c", code, "3600") as process:
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert errors.endswith("PanicException: no driver\n")


def test_stuck_service_ends_before_its_launcher_kills_it() -> None:
    assert min(GRACE_S, KILL_S) > host.STOP_S
