"""Servers whose token counts differ from the client's tokenizer, or that truncate prompts."""

import functools
import tempfile
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from benchmarks.fuzz.known_servers.known_server import KnownServer, stream
from benchmarks.fuzz.reply import Reply
from benchmarks.truth.client_runs import ClientRun

TOKENS = 10
"""Output tokens according to the server. Each has two bytes."""
LIMIT = 50
"""Length at which the server truncates prompts."""


@functools.cache
def byte_tokenizer() -> str:
    """Write a tokenizer whose tokens are single bytes, and return its path."""
    tokenizer = Tokenizer(
        BPE({symbol: i for i, symbol in enumerate(sorted(ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    path = Path(tempfile.gettempdir(), "aiperf-svc-byte-tokenizer.json")
    tokenizer.save(str(path))
    return str(path)


def reply(_: int) -> Reply:
    """Return ten tokens of two bytes, and a usage with 50 prompt tokens."""
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"ab"}}]}\n\n'] * TOKENS
    events.append(
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}],'
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (LIMIT, TOKENS)
    )
    return stream([*events, b"data: [DONE]\n\n"], gap_s=0.01, first_s=0.1)


def disagreement_is_named(run: ClientRun) -> list[str]:
    """Check that the verdict has the size of both differences and names the truncating server."""
    checks = {check["check"]: check for check in run.verdict["reasons"]}
    problems = []
    output = checks.get("output_tokens")
    if output is None or abs(output["measured"] - 0.5) > 0.01:
        problems.append(f"an OSL of 20 against 10 is not named: {output}")
    prompts = checks.get("input_tokens")
    if prompts is None or "truncated the prompts" not in prompts["text"]:
        problems.append(f"prompts of 5,000 tokens that are cut at 50 are not named: {prompts}")
    if run.verdict["verdict"] == "valid":
        problems.append("the run is valid")
    return problems


def servers_counts_are_used(run: ClientRun) -> list[str]:
    """With the server's counts, check that both lengths are its own and truncation is named."""
    lengths = run.results["output_sequence_length"]["avg"], run.results["input_sequence_length"]
    problems = []
    if (lengths[0], lengths[1]["avg"]) != (TOKENS, LIMIT):
        problems.append(f"lengths are {lengths}")
    if not any("it truncated them" in check["text"] for check in run.verdict["reasons"]):
        problems.append("prompts that are cut are not named")
    return problems


FLAGS = (
    *("--concurrency", "2", "--request-count", "20", "--isl", "5000"),
    *("--tokenizer", byte_tokenizer()),
)
SERVERS: tuple[KnownServer, ...] = (
    KnownServer("other-tokenizer", disagreement_is_named, reply=reply, flags=FLAGS),
    KnownServer(
        "server-token-counts",
        servers_counts_are_used,
        reply=reply,
        flags=(*FLAGS, "--use-server-token-count"),
    ),
)
