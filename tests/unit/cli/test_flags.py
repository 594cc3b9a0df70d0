"""The table of flags compared with the config, the help and the page, and invalid flags."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.cli import key_docs
from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.main import load_parser
from aiperf_svc.cli.options import DISPLAYS
from aiperf_svc.config.names import all_keys, type_at
from tests.support.flag_configs import CLOSED, refusal
from tests.support.printed_tables import flag_tables


def test_every_flag_writes_its_own_config_key() -> None:
    keys = [flag.key for flag in FLAGS]
    assert set(keys) <= set(all_keys())
    assert len(keys) == len(set(keys))
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))


def _is_of_a_length(key: str) -> bool:
    """Return whether a key belongs to a distribution without flags."""
    is_length = any(part in key for part in ("_tokens.", ".number.", ".tokens.", "dataset.images."))
    return is_length and key.endswith((".distribution", ".min", ".max"))


def test_every_key_has_a_flag_or_a_reason() -> None:
    """A new config key needs a flag or a line here."""
    only_in_files = {
        "endpoint.api_key_env",  # --api-key
        "endpoint.urls",  # --url again
        "endpoint.models",  # --model A,B
        "endpoint.hooks",
        "endpoint.proxy_auth_env",
        "endpoint.connect_timeout",
        "endpoint.request_usage",
        "endpoint.tls",
        "endpoint.tls.ca",  # --tls-ca-file
        "endpoint.source_addresses",
        "load.samples_per_query",  # --scenario multi-stream
        "dataset.url",
        "dataset.max_download",
        "dataset.sha256",
        "dataset.tool_results.tokens.mean",
        "dataset.tool_results.tokens.stddev",
        "dataset.tool_results.delay_ms.mean",
        "dataset.tool_results.delay_ms.stddev",
        # Parts of --stages and --rate-series.
        "load.stages.rate",
        "load.stages.duration",
        "load.rate_series.at",
        "load.rate_series.rate",
        # Parts of --bursts.
        "load.bursts.rate",
        "load.bursts.length",
        "load.bursts.every",
        "load.warmup.arrival.burstiness",
    }
    only_in_files |= {key for key in all_keys() if _is_of_a_length(key)}
    parts = {
        "load.agentic.start", "load.arrival", "load.cancellation", "load.user_centric",
        "load.warmup",
        "load.warmup.arrival", "load.steady_state",
        "dataset.input_tokens", "dataset.output_tokens",
        "dataset.passages", "dataset.passages.number", "dataset.passages.tokens",
        "dataset.prefix", "dataset.turns", "dataset.turns.number", "dataset.turns.delay_ms",
        "dataset.images", "dataset.images.width", "dataset.images.height",
        "dataset.sounds", "dataset.sounds.seconds",
        "dataset.tool_results", "dataset.tool_results.tokens", "dataset.tool_results.delay_ms",
    }  # fmt: skip
    flagged = {flag.key for flag in FLAGS}
    wanted = {
        key for key in all_keys() if key.startswith(("endpoint.", "load.", "dataset."))
    } - parts
    assert wanted - flagged == only_in_files


def test_help_lists_every_choice_in_sentences() -> None:
    for flag in FLAGS:
        text = key_docs.flag_text(flag)
        literal = re.search(r"Literal\[(.*?)\]", str(type_at(flag.key.split("."))))
        for choice in re.findall(r"'(.*?)'", literal[1]) if literal else ():
            assert choice in text, flag.name
        assert re.match(r"[A-Z/`\d].*\.$", text), flag.name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("--request-timeout", "Timeout of a request. Default: 10m."),
        ("--arrival-pattern", "Choices: constant, poisson, gamma. Default: poisson."),
        ("--isl", "Default: 550."),
        ("--isl-stddev", "Standard deviation of --isl. Default: 0."),
        ("--seq-dist", "instead of --isl and --osl."),
        ("--prefill-concurrency-ramp-duration", "over which --prefill-concurrency grows"),
        ("--header", "use --api-key."),
    ],
)
def test_help_comes_from_the_models(name: str, text: str) -> None:
    (flag,) = (each for each in FLAGS if each.name == name)
    assert text in key_docs.flag_text(flag)


def test_switches_are_exactly_the_boolean_keys() -> None:
    for flag in FLAGS:
        is_bool = "bool" in str(type_at(flag.key.split(".")))
        is_part = flag.read is not None and flag.kind == "switch"
        assert is_part or is_bool == (flag.kind in ("switch", "off")), flag.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--header 'no colon'", "--header: 'no colon': expected `Name: value`"),
        ("--extra-inputs x", "--extra-inputs: 'x': expected `key:value` or a JSON object"),
        ("--extra-inputs {x", "--extra-inputs: '{x': not valid JSON"),
        (
            "--slo time_to_first_token",
            "--slo: 'time_to_first_token': expected a limit such as time_to_first_token:p99<500ms",
        ),
        (
            "--slo 'time_to_first_token:p98<1'",
            "--slo (slo.objectives.0.stat): 'p98': expected avg, min, max, p50, p75, p90, p95 or "
            "p99; did you mean p99?",
        ),
        ("--goodput x", "--goodput: 'x': expected a limit such as time_to_first_token:500ms"),
        ("--osl-stddev 3", "--osl: must be given"),
        ("--burstiness 2", "--burstiness 2 needs --arrival-pattern gamma, not poisson"),
        ("--streaming --endpoint-type embeddings", "the embeddings API does not stream"),
        ("--concurency 3", "--concurency is not a flag; did you mean --concurrency?"),
        ("--concurrency", "--concurrency: needs a value; see aiperf-svc profile --help"),
        ("extra", "unexpected argument 'extra'"),
        ("--concurrency 1,,2", "--concurrency: '1,,2': expected values with commas between"),
        ("--concurrency 0,1", "--concurrency: 0: expected a number above 0"),
        (
            "--sweep load.concurency=1,2",
            "--sweep: load.concurency: no key of the config; did you mean load.concurrency?",
        ),
        ("--sweep load.concurrency", "--sweep: 'load.concurrency': expected KEY=VALUES"),
        ("--search load.concurrency=1", "--search: 'load.concurrency=1': expected KEY=FROM"),
        ("--search random_seed=9..1", "--search: from 9 is not below to 1"),
        ("--search load.concurency=1..9", "--search: load.concurency: no key of the config"),
        (
            "--sweep load.concurrency=1,2",
            "--sweep: load.concurrency is also given by --concurrency; leave out one of them",
        ),
        (
            "--search load.concurrency=1..9",
            "--search: load.concurrency is also given by --concurrency; leave out one of them",
        ),
        ("--scenario serve", "--scenario: 'serve': expected server, interactive"),
        ("--repetitions 0", "--repetitions: '0': expected a number above 0"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(words: str, message: str) -> None:
    assert message in refusal(*CLOSED, *shlex.split(words))


def test_all_wrong_flags_are_reported_together() -> None:
    message = refusal("--url", "ftp://h", "--concurrency", "0", "--slo", "?", "--name", "No Name")
    assert message.startswith("5 problems\n")
    for name in ("--url", "--model", "--concurrency", "--slo", "--name"):
        assert f"\n  {name}: " in message


def test_aiperfs_display_names_are_accepted() -> None:
    assert DISPLAYS["dashboard"] == "rich"
    assert DISPLAYS["simple"] == "plain"


def test_the_page_names_every_flag_of_profile() -> None:
    text = (Path(__file__).parents[3] / "docs" / "flags.md").read_text()
    names = {name for each in load_parser("profile")._actions for name in each.option_strings}
    shown = {name for name in names if re.search(rf"`{name}[` ]", text)}
    assert {name for name in names - shown if not name.startswith("--no-")} == {"-h", "--help"}


def test_the_documented_flags_are_the_tables(
    assert_printed: Callable[[Path, str, str], None],
) -> None:
    path = Path(__file__).parents[3] / "docs" / "flags.md"
    mark = "<!-- Everything below is printed from aiperf_svc/cli/key_docs.py. -->\n"
    assert_printed(path, mark, flag_tables())
