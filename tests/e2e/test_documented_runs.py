"""The commands of README's first steps, run as a new user runs them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.documented import README, commands
from tests.support.forked_commands import PROGRAM
from tests.support.running_command import FINISHED, Command


@contextmanager
def mock_server(*flags: str) -> Iterator[str]:
    """Run `aiperf-svc mock-server` with these flags and yield its address."""
    command = [*PROGRAM, "mock-server", "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["urls"][0]
        finally:
            process.terminate()


def test_readmes_command_measures_readmes_server(tmp_path: Path) -> None:
    shown = commands(README)
    (words,) = (each for each in shown if each[:2] == ["profile", "-u"])
    (server,) = (each for each in shown if each[0] == "mock-server")
    # Shorter than the documented minute, with a fixed number of requests for busy machines.
    words += ["--request-count", "60"]
    server[server.index("--port") + 1] = "0"
    with mock_server(*server[1:]) as url:
        words[words.index("-u") + 1] = url
        command = Command(tmp_path, None, words=words)
        results = command.finish()["results"]
    is_measured = command.code in (*FINISHED, ExitCode.SLO_MISSED, ExitCode.SLO_NOT_JUDGED)
    assert is_measured, command.errors
    assert results["output_sequence_length"]["avg"] == 128
    # On a busy machine the client may be late, but the server's latency must be visible.
    assert results["time_to_first_token"]["p50"] > 25
    assert results["inter_token_latency"]["p50"] > 9
    reasons = results["aiperf_svc"]["reasons"]
    assert not [each for each in reasons if "too fast" in each["remedy"]]
