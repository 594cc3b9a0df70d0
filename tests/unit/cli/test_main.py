"""The command line as the shell sees it: exit codes, one message, no traceback."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import aiperf_svc
from aiperf_svc.cli import main as cli
from aiperf_svc.cli.arguments import CODES_OF, EXIT_CODES, codes_of, exit_code_help
from aiperf_svc.cli.commands import version
from aiperf_svc.domain.errors import BenchmarkFailed, ConfigError, EnvironmentProblem, LeakError
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.forked_commands import finished

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("profil", "error: 'profil' is not a command; did you mean profile?"),
        ("zzz", "error: 'zzz' is not a command; see aiperf-svc --help"),
        ("profile --concurrency x", "--concurrency: 'x': expected a whole number"),
        (
            "profile -u h -m m --concurrency 1 --ui rihc",
            "error: --ui: 'rihc': expected auto, rich, plain or none; did you mean rich?",
        ),
        (
            "profile -u h -m m --concurrency 1 -H 'Authorization: x'",
            "-H (endpoint.headers.Authorization): would be kept in plain text",
        ),
        (
            "profile -u 'h/v1/chat/completions?api-version=1' -m m --concurrency 1",
            "after the path; a query belongs to the path of the API (endpoint.path, --endpoint /v1",
        ),
        (
            "profile -u h -m m --concurrency 1 --endpoint '/v1/x?api-version=1&key=AIza'",
            "error: --endpoint: would be kept in plain text",
        ),
        ("bench --isl 0", "error: --isl: '0': expected a number above 0"),
        ("bench --url h", "error: --url is not a flag"),
        ("run bench-smok --local", "did you mean bench-smoke?"),
        ("run bench-smoke --local --keep", "--keep: only for a cluster"),
        ("profile -u localhost:1 --context c", "--context: only for a run in a cluster"),
        ("profile -k -u localhost:1 -m m --concurrency 1", "the cluster's pods can reach"),
        ("run bench-spot --timeout soon", "error: --timeout: 'soon'"),
        ("run bench-vllm --local", "name a running server with --url"),
        ("validate nix.yaml", "error: nix.yaml: no such file"),
        ("validate README.md", "error: README.md: expected a config, a .yaml"),
        ("workloads nope", "'nope': no such kind; expected one of command, "),
        ("trace nofile", "error: there is no file nofile"),
        ("export docs --jsonl", "error: docs: not the folder of a finished run"),
        ("profile --concurency 5", "did you mean --concurrency?\n  see aiperf-svc profile --help"),
        ("mock-server --ttft -5ms", "error: --ttft: '-5ms' is not a duration"),
        ("bench --duration -5s", "error: --duration: '-5s': expected"),
        ("bench --duration 0", "'0': expected a duration above zero"),
        ("bench --artifact-dir ''", "error: --artifact-dir: '': expected some text"),
        ("bench --workers-min 5 --workers-max 2", "--workers-max 2 is below --w"),
        (
            "bench --ramp-duration 10s --duration 5s",
            "error: --ramp-duration 10s is longer than --duration 5s\n",
        ),
        ("service", "error: name a service, or set AIPERF_SERVICE"),
        ("service wrker", "error: 'wrker' is not a service; did you mean worker?"),
    ],
)
def test_wrong_call_has_exit_code_and_one_message(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AIPERF_SERVICE", raising=False)
    monkeypatch.chdir(REPOSITORY)
    assert cli.main(shlex.split(words)) == ExitCode.BAD_CONFIG
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "message"),
    [
        (
            ("profile", "--concurrency", "x"),
            {},
            2,
            "error: 3 problems\n  --url: must be given\n  --model: must be given\n"
            "  --concurrency: 'x': expected a whole number\n",
        ),
        (
            ("service", "worker"),
            {},
            1,
            "AIPERF_RUN_ID is not set; services are started by `profile`, `run` or a stack\n",
        ),
        (
            ("service", "worker"),
            {"AIPERF_PARENT_PID": "1"},
            1,
            "error: process 1, which started this one, is gone\n",
        ),
    ],
)
def test_shell_sees_the_exit_code_and_no_traceback(
    arguments: tuple[str, ...], environ: dict[str, str], code: int, message: str
) -> None:
    ended = finished(arguments, cwd=REPOSITORY, env=os.environ | environ)
    assert ended.returncode == code
    assert ended.stderr == message
    assert ended.stdout == ""


def test_validate_reports_every_file_and_any_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("endpoint: {url: 'http://h', model: m}\nload: {concurrency: 1, requests: 1}\n")
    wrong.write_text(wrong.read_text() + "slo: {goodput: {ttft: 1}}\n")
    assert cli.main(["validate", "bench-smoke", str(wrong)]) == ExitCode.BAD_CONFIG
    out, err = capsys.readouterr()
    assert out == "stacks/Pulumi.bench-smoke.yaml: ok\n"
    assert err.startswith(f"error: {wrong}: slo.goodput.ttft: 'ttft' is not a metric")
    assert cli.main(["validate"]) == ExitCode.OK


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{aiperf_svc.__version__}\n" * 2


def test_help_lists_user_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert re.search(rf"^  {command} ", text, re.MULTILINE)
    for command in cli.HIDDEN:
        assert not re.search(rf"^  {command}\b", text, re.MULTILINE)
    assert set(EXIT_CODES) == set(ExitCode)
    for code in ExitCode:
        assert f"{int(code):>3}  {EXIT_CODES[code]}" in text


@pytest.mark.parametrize("command", [*cli.COMMANDS, *cli.HIDDEN])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: aiperf-svc {command} ")
    assert text.endswith(f"\n{exit_code_help(command)}\n")


def test_help_has_only_the_commands_exit_codes() -> None:
    assert exit_code_help("gc").splitlines() == [
        "exit codes:",
        "    0  nothing is left of the chosen stacks",
        "    1  a stack was refused, or a cluster could not be searched",
        "    2  the config, a flag or an input is invalid; nothing was sent",
        "    6  objects are left; the output lists them",
        "   10  it is unknown whether objects are left: this user may not list them",
        "  130  the confirmation was declined, or the command was interrupted",
    ]
    assert [int(code) for code in codes_of("schema")] == [0, 1, 2, 130]
    assert set(CODES_OF) < set(cli.COMMANDS)
    assert {code for command in cli.COMMANDS for code in codes_of(command)} == set(ExitCode)


@pytest.mark.parametrize("command", [*cli.COMMANDS, "service"])
def test_every_command_has_a_function_with_its_work(command: str) -> None:
    assert callable(cli.work_of(command))


def test_missing_command_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == ExitCode.BAD_CONFIG
    assert "commands:" in capsys.readouterr().out


def test_help_and_parsing_need_no_models_or_libraries() -> None:
    code = (
        "import sys; from aiperf_svc.cli.main import main\n"
        "for words in (['--help'], ['version'], ['profile', '--concurency', '1']): main(words)\n"
        "heavy = {'pydantic', 'yaml', 'numpy', 'zmq', 'aiohttp', 'msgspec', 'asyncio'}\n"
        "heavy.add('aiperf_svc.adapters.host.private_files')\n"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True)
    assert ended.returncode == 0


def test_local_run_command_loads_no_libraries_of_services() -> None:
    code = (
        "import sys\n"
        "from aiperf_svc.cli.main import main\n"
        "main(['profile', '-u', 'h', '-m', 'm', '--concurrency', '1', '--dry-run'])\n"
        "from aiperf_svc.adapters.terminal import live_display\n"
        "from aiperf_svc.runner import printing, process_placement\n"
        "sys.stderr.write(', '.join({'numpy', 'aiohttp', 'uvloop'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("before", "then"),
    [("", ""), ("atexit.register(print, 'coverage')", "coverage\nfreed\n")],
    ids=["usual", "a tool was there first"],
)
def test_command_ends_after_output_and_libraries(before: str, then: str) -> None:
    code = (
        "import atexit, sys\n"
        f"{before}\n"
        "from aiperf_svc.__main__ import main\n"
        "from aiperf_svc.cli import main as cli\n"
        "class Kept:\n"
        "    def __del__(self): print('freed')\n"
        "sys.modules['kept'] = Kept()\n"
        "def run():\n"
        "    atexit.register(print, 'library')\n"
        "    print('command')\n"
        "    return 7\n"
        "cli.main = run\n"
        "sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    printed = f"command\nlibrary\n{then}"
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, printed, "")


def command_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(args: object) -> int:
        raise error

    monkeypatch.setattr(version, "version", run)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("a"), ExitCode.BAD_CONFIG, "error: a\n"),
        (BenchmarkFailed("b"), ExitCode.BENCHMARK_FAILED, "error: b\n"),
        (LeakError("c"), ExitCode.LEAKED, "error: c\n"),
        (EnvironmentProblem("d"), ExitCode.ERROR, "error: d\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
        (
            ZeroDivisionError("division"),
            ExitCode.ERROR,
            "error: unexpected ZeroDivisionError: division; set AIPERF_DEBUG=1 for a traceback\n",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_failure_has_exit_code_without_traceback(
    error: BaseException,
    code: ExitCode,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("AIPERF_DEBUG", raising=False)
    command_that_raises(monkeypatch, error)
    assert cli.main(["version"]) == code
    assert capsys.readouterr().err == message


def test_traceback_of_an_unexpected_error_is_optional(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIPERF_DEBUG", "1")
    command_that_raises(monkeypatch, ZeroDivisionError("division"))
    cli.main(["version"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_closed_output_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aiperf_svc", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate()
    assert errors == b""


def test_command_works_without_standard_output() -> None:
    command = f"{sys.executable} -m aiperf_svc workloads >&-"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
