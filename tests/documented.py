"""The commands and configs that the pages for readers show."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/workloads/*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?aiperf-svc (.*)$", re.MULTILINE)
_INLINE = re.compile(r"`(?:\.venv/bin/)?aiperf-svc ([a-z][^`]*)`")


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command line of this program in a page, without the program."""
    text = page.read_text()
    blocks = [block.replace("\\\n", " ") for _, block in _BLOCK.findall(text)]
    lines = [line for block in blocks for line in _COMMAND.findall(block)]
    return [shlex.split(line, comments=True) for line in lines + _INLINE.findall(text)]


def yaml_blocks(page: Path) -> list[str]:
    """Return the YAML of a page, block by block."""
    return [text for language, text in _BLOCK.findall(page.read_text()) if language == "yaml"]
