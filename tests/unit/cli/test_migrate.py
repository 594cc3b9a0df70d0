"""AIPerf command lines are migrated, and options of AIPerf and GuideLLM are accepted or named."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.cli.commands import migrate
from aiperf_svc.cli.foreign_flags import ADVICE, COUNTERPARTS, OTHERS, TABLE, advice_for
from aiperf_svc.cli.main import main
from aiperf_svc.domain.errors import ConfigError
from tests.support.documented import documented, write_inputs
from tests.support.flag_configs import parser
from tests.support.printed_tables import aiperf_tables

FLAGS = [
    name
    for line in (Path(__file__).parent / "aiperf_0_13_flags.txt").read_text().splitlines()
    for name in line.split()
]
"""Every flag name of `aiperf profile` 0.13.0."""
GUIDELLM = Path(__file__).parents[3] / "docs" / "from-guidellm.md"


def own_flags() -> set[str]:
    return {name for action in parser()._actions for name in action.option_strings}


def test_every_option_of_guidellm_is_on_its_page() -> None:
    options = (Path(__file__).parent / "guidellm_0_8_options.txt").read_text().split()
    rows = [line for line in GUIDELLM.read_text().splitlines() if line.startswith("| ")]
    theirs = [row.split(" | ")[0] for row in rows]
    missing = [
        name
        for name in options
        if not any(re.search(re.escape(name) + r"(?![\w-]*\w)", each) for each in theirs)
    ]
    assert missing == []


def test_replacements_of_guidellm_flags_exist() -> None:
    rows = [line for line in GUIDELLM.read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"--[a-z][\w-]*", row.split(" | ")[1])}
    assert len(named) > 40
    assert named - own_flags() == set()


def test_every_aiperf_flag_is_either_accepted_or_explained() -> None:
    own = own_flags()
    assert [name for name in FLAGS if (name in own) == (name in ADVICE)] == []
    assert [name for name in ADVICE if name in own] == []
    names = [name for _, _, row in TABLE for name in row.split()]
    assert len(names) == len(set(names)) == len(ADVICE)


def moved(command: str) -> migrate.Migration:
    return migrate.migrated(migrate._words([command]))


@pytest.fixture
def trace_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a working folder with the files that AIPerf's commands use."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)


@pytest.mark.usefixtures("trace_folder")
@pytest.mark.parametrize(
    "command",
    [
        *documented(),
        "aiperf profile -m BAAI/bge-reranker-base --endpoint-type hf_tei_rankings --url "
        "localhost:8080 --request-count 10 --rankings-passages-mean 5 --rankings-passages-stddev 1 "
        "--rankings-passages-prompt-token-mean 32 --rankings-passages-prompt-token-stddev 8 "
        "--rankings-query-prompt-token-mean 16 --rankings-query-prompt-token-stddev 4",
        "aiperf profile --model embedding-model --url http://localhost:8000/embed --endpoint-type "
        "template --extra-inputs payload_template:'{\"input\": {{ texts|tojson }}}' "
        "--extra-inputs response_field:'embeddings' --synthetic-input-tokens-mean 50 "
        "--concurrency 8 --request-count 100",
        "aiperf profile --model m --url http://localhost:8000 --streaming --concurrency 1,2,4 "
        "--num-profile-runs 3 --request-count 50 --ui-type simple --random-seed 42",
        "aiperf profile --model m --url http://localhost:8000 --streaming --concurrency 4 "
        "--goodput 'time_to_first_token:500 request_latency:2000' --slice-duration 5 "
        "--warmup-request-count 10 --extra-inputs temperature:0.7 top_p:0.9 -H 'A: b'",
    ],
)
def test_commands_of_aiperfs_documentation_are_accepted(command: str) -> None:
    migration = moved(command)
    assert migration.missing == []
    assert main(["profile", *migration.arguments, "--dry-run"]) == 0
    # A tokenizer from a hub is loaded only if the command names it.
    assert ("--tokenizer" in migration.arguments) == ("--tokenizer" in command)


@pytest.mark.usefixtures("trace_folder")
def test_aiperf_commands_run_with_another_first_word() -> None:
    refused = [
        command for command in documented() if main([*shlex.split(command)[1:], "--dry-run"]) != 0
    ]
    assert len(documented()) == 25
    assert len(refused) == 2
    assert all("--url" not in command for command in refused)


def test_number_of_conversations_ends_the_run() -> None:
    command = "aiperf profile -m m --url h:1 --conversation-num 7 --conversation-turn-mean 2"
    assert moved(command).arguments[-2:] == ["--request-count", "7"]
    assert "--request-count" not in moved(f"{command} --benchmark-duration 5").arguments


def test_value_behind_an_equals_sign_is_seen() -> None:
    joined = moved(
        "aiperf profile --model=a/b --url=h:1 --concurrency=3 --conversation-num=7 "
        "--log-level=debug --system-prompt=-x"
    )
    apart = moved(
        "aiperf profile --model a/b --url h:1 --concurrency 3 --conversation-num 7 "
        "--log-level debug --system-prompt=-x"
    )
    assert (joined.command, joined.notes) == (apart.command, apart.notes)
    assert joined.arguments.count("--url") == 1
    assert joined.arguments[-3:] == ["--system-prompt=-x", "--request-count", "7"]


def test_chat_template_adds_its_tokenizer() -> None:
    command = "aiperf profile -m a/b --url h:1 --apply-chat-template"
    assert moved(command).arguments[-2:] == ["--tokenizer", "a/b"]


def test_replay_has_no_default_users_or_requests() -> None:
    trace = "aiperf profile -m m --url h:1 --input-file t --custom-dataset-type mooncake_trace"
    replay = moved(f"{trace} --fixed-schedule")
    assert "--concurrency" not in replay.arguments
    assert (replay.notes, replay.missing) == ([], [])
    assert moved(trace).notes == []
    closed = moved(f"{trace} --concurrency 2")
    assert any("AIPerf sends rows at their own times" in note for note in closed.notes)


def test_differences_are_listed_with_their_values() -> None:
    migration = moved(
        "aiperf profile \\\n  --model a/b --video-fps 2 --log-level debug \\\n"
        "  --use-server-token-count --concurrency 3 --request-count 9"
    )
    (missing,) = migration.missing
    assert missing == "--video-fps 2: videos are not supported"
    assert [note.partition(":")[0] for note in migration.notes] == [
        "--log-level debug",
        "--url http",
    ]
    assert migration.command == (
        "aiperf-svc profile \\\n  --model a/b \\\n  --use-server-token-count \\\n"
        "  --concurrency 3 \\\n  --request-count 9 \\\n"
        "  --url http://localhost:8000"
    )


def test_refused_value_is_named() -> None:
    migration = moved("aiperf profile --model m --concurrency 1 --arrival-pattern constant")
    assert any("needs --request-rate" in line for line in migration.missing)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("aiperf plot x", "expected `aiperf profile`"),
        ("", "expected `aiperf profile`"),
        ("aiperf profile --zzz 1", "--zzz is not a flag of AIPerf 0.13"),
        ("aiperf profile model --streaming", "unexpected argument 'model'"),
        ("aiperf profile --model 'x", "cannot be read: No closing quotation"),
    ],
)
def test_invalid_aiperf_command_is_refused(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        moved(command)


def test_json_has_command_and_missing_flags(capsys: pytest.CaptureFixture[str]) -> None:
    command = "aiperf profile --model m --url h:1 --concurrency 1 --request-count 1 --stream x"
    assert main(["migrate", "--json", command]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["command"][:4] == ["aiperf-svc", "profile", "--model", "m"]
    assert printed["notes"] == []
    assert printed["missing"] == ["--stream x: MLflow receives finished runs; nothing is streamed"]


def test_profile_notes_flags_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    args = parser().parse(
        ["--model", "m", "--auto-plot", "--wait-for-model-mode", "models", "--url", "h"]
    )
    assert (args.model, args.url) == ("m", ["h"])
    errors = capsys.readouterr().err
    assert "note: --auto-plot has no effect: " in errors
    assert "note: --wait-for-model-mode has no effect: " in errors


def test_profile_names_the_replacement_of_an_aiperf_flag() -> None:
    with pytest.raises(ConfigError, match="--search-metric is a flag of AIPerf: --search KEY"):
        parser().parse(["--search-metric", "x"])


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--random-input-len", "--random-input-len is a flag of vLLM bench; here use --isl"),
        ("--base-url=x", "--base-url is a flag of vLLM bench; here use --url"),
        ("--max-tokens", "--max-tokens is a flag of GuideLLM; here use --osl"),
        ("--num-concurrency", "--num-concurrency is a flag of genai-bench; here use --concurrency"),
    ],
)
def test_flag_of_another_tool_names_its_counterpart(flag: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}\n"):
        parser().parse([flag, "1"])


def test_counterparts_exist_and_hide_no_other_flag() -> None:
    own = own_flags()
    named = {name for _, text, _ in OTHERS for name in re.findall(r"--[a-z][\w-]*", text)}
    assert named - own == set()
    assert COUNTERPARTS.keys() & (own | ADVICE.keys()) == set()
    assert len(COUNTERPARTS) == len([name for _, _, row in OTHERS for name in row.split()])


def test_negative_form_of_a_switch_is_accepted() -> None:
    assert advice_for("--no-auto-plot") == advice_for("--auto-plot")
    assert advice_for("--no-such-flag") is None


def test_documented_tables_match_the_code(assert_printed: Callable[[Path, str, str], None]) -> None:
    path = Path(__file__).parents[3] / "docs" / "from-aiperf.md"
    mark = "<!-- Everything below is printed from aiperf_svc/cli/foreign_flags.py. -->\n"
    assert_printed(path, mark, aiperf_tables())


def test_several_urls_become_repeated_flags() -> None:
    found = moved(
        "aiperf profile --model m --url a:1 b:2 --url-strategy round_robin --concurrency 1"
    )
    assert found.arguments[2:6] == ["--url", "a:1", "--url", "b:2"]
    assert found.missing == []


@pytest.mark.parametrize(
    "load",
    [
        "--user-centric-rate 5 --num-users 20 --session-turns-mean 5",
        "--request-rate-series rates.json",
        "--request-rate 5",
    ],
)
def test_rate_based_load_gets_no_default_concurrency(load: str) -> None:
    migration = moved(f"aiperf profile --model m --url h:1 {load} --benchmark-duration 60")
    assert "--concurrency" not in migration.arguments
    notes = [note for note in migration.notes if note.startswith("--request-rate-series")]
    assert len(notes) == ("series" in load)
