"""Finds the causes of a failure in the output of the Pulumi CLI."""

import re
from collections.abc import Iterable

from aiperf_svc.domain.foreign_text import one_line

MAX_LENGTH = 400
"""Maximum number of characters of a cause."""
SHOWN = 3
_COLOUR = re.compile(r"<\{%[^%]*%\}>|\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:[\w./:-]+ \([^)]*\): )?(?:error: )+|^resource \S+ was (?:successfully created|not "
    r"successfully created by the Kubernetes API server)\s*(?:, but the Kubernetes API server "
    r"reported that it failed to fully initialize or become live)?: ",
    re.IGNORECASE,
)
_SUMMARY = re.compile(
    r"^(update|preview|destroy|refresh|resource (creation|deletion|update)) (failed|canceled)\b",
    re.IGNORECASE,
)
"""Lines that only report that a command failed."""
_ITEM = re.compile(r"(?:^(?:error: )?\d+ errors? occurred:)?\s*\n\s*\* ")
"""Prefix of each error in a message with several errors."""
_POD = re.compile(r"^\[Pod ")
_ERROR, _NO_ERROR = re.compile(r"^\s*error: "), re.compile(r"^\S|^\s*(warning|info|debug): |:$")
"""Start of an error in a command's output, and start of a line that is not an error."""
_PROGRESS = re.compile(r"\s*(@|[+~-]{1,2} |warning: )")
_TRACEBACK = "Traceback (most recent call last)"


def causes(messages: Iterable[str]) -> tuple[str, ...]:
    """Return each error in one line, without Pulumi's own prefixes and summaries."""
    found = dict.fromkeys(filter(None, map(_cause, messages)))
    return tuple(found)


def causes_in(output: str) -> tuple[str, ...]:
    """Return the errors in a command's output, without its progress lines."""
    blocks: list[str] = []
    is_error = False
    lines = [line for line in _COLOUR.sub("", output).splitlines() if line.strip()]
    for line in lines:
        if _ERROR.match(line):
            blocks.append(line.strip())
            is_error = True
        elif is_error and not _NO_ERROR.search(line):
            blocks[-1] += f"\n{line}"
        else:
            is_error = False
    return causes(blocks or (line for line in lines[-SHOWN:] if not _PROGRESS.match(line)))


def in_few_lines(found: tuple[str, ...]) -> str:
    """Format the causes: the first in one line, a few below it, then the number of others."""
    more = len(found) - SHOWN
    last = [f"and {more} more"] if more > 0 else []
    return "\n  ".join([*found[:SHOWN], *last]) or "no reason given"


def _cause(message: str) -> str:
    text = _COLOUR.sub("", message).strip()
    if _TRACEBACK in text:
        # The last line of a traceback is the exception.
        text = text.splitlines()[-1]
    first, *more = [_stripped(item) for item in _ITEM.split(text) if item.strip()] or [""]
    # The messages of a Deployment do not explain a failure; the messages of its pods may.
    pods = [each for each in more if _POD.match(each)]
    return one_line(f"{first}: {pods[0]}" if pods else first, limit=MAX_LENGTH)


def _stripped(item: str) -> str:
    text = " ".join(item.split())
    while match := _PREFIX.match(text):
        text = text[match.end() :]
    return "" if _SUMMARY.match(text) else text
