"""`aiperf-svc migrate`: translates a command line of AIPerf."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aiperf_svc.adapters.terminal.output import print_json
from aiperf_svc.cli.arguments import Parser
from aiperf_svc.cli.flag_config import read_draft
from aiperf_svc.cli.foreign_flags import advice_for
from aiperf_svc.cli.main import load_parser
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

DEFAULT_URL = "http://localhost:8000"
_LOADS = {"--concurrency", "--request-rate", "--request-rate-series", "--user-centric-rate"}
"""Flags that define when requests are sent."""
_SCHEDULE = {
    "--fixed-schedule",
    "--fixed-schedule-auto-offset",
    "--fixed-schedule-start-offset",
    "--fixed-schedule-end-offset",
}
_ENDS = {"--request-count", "--num-requests", "--benchmark-duration", "--duration"}
_CONVERSATIONS = ("--conversation-num", "--num-conversations", "--num-sessions")
"""Flags with the number of prompts that also end AIPerf's runs."""


@dataclass
class Migration:
    """A translated command line and its differences."""

    arguments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Flags that are unnecessary or have another form."""
    missing: list[str] = field(default_factory=list)
    """Flags without a counterpart."""

    @property
    def command(self) -> str:
        """The command line, one flag per line."""
        lines = ["aiperf-svc profile"]
        for flag, values in _flags(self.arguments):
            lines.append(" ".join(["  " + flag, *map(shlex.quote, values)]))
        return " \\\n".join(lines)


def migrate(args: argparse.Namespace) -> int:
    """Print the command line, then the differences."""
    migration = migrated(_words(args.command))
    if args.json:
        shown = {
            "command": ["aiperf-svc", "profile", *migration.arguments],
            "notes": migration.notes,
            "missing": migration.missing,
        }
        print_json(shown)
        return int(ExitCode.OK)
    print(migration.command)
    for title, found in (
        ("notes", migration.notes),
        ("without a counterpart", migration.missing),
    ):
        if found:
            print(f"\n{title}:")
            print("\n".join(f"  {line}" for line in found))
    return int(ExitCode.OK)


def migrated(words: Sequence[str]) -> Migration:
    """Translate flags of AIPerf. Raises ConfigError for an unknown flag."""
    parser = load_parser("profile")
    known = {name for action in parser._actions for name in action.option_strings}
    repeated = {
        name
        for action in parser._actions
        if isinstance(action, argparse._AppendAction) and action.nargs is None
        for name in action.option_strings
    }
    migration = Migration()
    flags = dict(_flags(words))
    for flag, values in _flags(words):
        name, _, _ = flag.partition("=")
        advice = advice_for(name)
        if name in repeated and len(values) > 1:
            migration.arguments += [word for value in values for word in (flag, value)]
        elif name in known:
            migration.arguments += [flag, *values]
        elif advice is None:
            raise ConfigError(f"{name} is not a flag of AIPerf 0.13 or of this program")
        else:
            is_missing = advice.kind == "none"
            found = migration.missing if is_missing else migration.notes
            found.append(f"{' '.join([flag, *values])}: {advice.text}")
    _complete(migration, flags)
    _check(migration, parser)
    return migration


def _words(command: Sequence[str]) -> list[str]:
    text = command[0] if len(command) == 1 else shlex.join(command)
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError(f"the command cannot be read: {error}") from None
    if words[:1] == ["aiperf"]:
        words = words[1:]
    if words[:1] != ["profile"]:
        raise ConfigError(
            f"{' '.join(words[:1]) or 'nothing'}: expected `aiperf profile` and its flags"
        )
    return words[1:]


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words up to the next flag. `--url=a` becomes `--url a`; a value that
    starts like a flag keeps its `=`."""
    flag, values = "", list[str]()
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            if flag:
                yield flag, values
            flag, values = word, []
            name, equals, value = word.partition("=")
            if equals and not value.startswith("-"):
                flag, values = name, [value]
        elif not flag:
            raise ConfigError(f"unexpected argument {word!r}")
        else:
            values.append(word)
    if flag:
        yield flag, values


def _complete(migration: Migration, flags: dict[str, list[str]]) -> None:
    """Add the defaults of AIPerf."""
    model = next((flags[name] for name in ("--model", "-m", "--model-names") if name in flags), [])
    if not {"--url", "-u"} & flags.keys():
        migration.arguments += ["--url", DEFAULT_URL]
        migration.notes.append(f"--url {DEFAULT_URL}: AIPerf's default")
    if "--request-rate-series" in flags:
        migration.notes.append(
            "--request-rate-series: the load ends with the last point; AIPerf continues at its rate"
        )
    if not {"--tokenizer", "--use-server-token-count"} & flags.keys() and "/" in "".join(model):
        _complete_tokenizer(migration, model, is_needed="--apply-chat-template" in flags)
    kind = "".join(flags.get("--custom-dataset-type", ()))
    is_trace = kind.replace("-", "_") == "mooncake_trace"
    is_replay = not _SCHEDULE.isdisjoint(flags) or (is_trace and _LOADS.isdisjoint(flags))
    if is_trace and not is_replay:
        migration.notes.append(
            "--custom-dataset-type mooncake_trace: AIPerf sends rows at their own times; use "
            "--fixed-schedule instead of --concurrency or --request-rate for this"
        )
    if is_replay or not _ENDS.isdisjoint(flags):
        return
    conversations = next((flags[name] for name in _CONVERSATIONS if name in flags), None)
    if conversations:
        migration.arguments += ["--request-count", *conversations]
        migration.notes.append(
            f"--request-count {' '.join(conversations)}: AIPerf ends after this many conversations"
        )
    else:
        migration.notes.append(
            "no --request-count: 10 requests per user; AIPerf sends 2 per user, at least 10"
        )


def _complete_tokenizer(migration: Migration, model: list[str], *, is_needed: bool) -> None:
    """Add the tokenizer of the model if it is needed to count tokens; otherwise add a note."""
    name = " ".join(model)
    if is_needed:
        migration.arguments += ["--tokenizer", *model]
        migration.notes.append(f"--tokenizer {name}: AIPerf loads the tokenizer of the model")
    else:
        migration.notes.append(
            f"no --tokenizer {name}: AIPerf loads it from the hub; without it, prompt lengths are "
            "approximate, and output tokens are those that the server reports"
        )


def _check(migration: Migration, parser: Parser) -> None:
    """Check the new command line like `profile`, and list its problems."""
    try:
        read_draft(parser.parse(migration.arguments)).parse()
    except AiperfError as error:
        migration.missing += [line.strip() for line in str(error).splitlines()]
