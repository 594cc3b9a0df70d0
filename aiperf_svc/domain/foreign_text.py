"""Text from outside of this program: a server, a container, a cluster, a file.

It may hold escape sequences that rewrite a terminal, characters that reverse what follows them,
line breaks that forge lines of a log, or a megabyte. `one_line` and `lines` make it harmless for
code that shows or stores it. They are applied where such text enters, and once more where texts are
printed. Nothing is lost without a trace: what cannot be shown is written as `\\x1b`.
"""

LINE_LIMIT = 500
"""Characters of a text that becomes part of one line."""
MESSAGE_LIMIT = 16 * 1024
"""Characters of a message of several lines: an exception may quote all that a server sent."""
CUT = " […]"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that spreadsheets interpret as a formula."""


def one_line(text: str, *, limit: int = LINE_LIMIT) -> str:
    """The text as one line of printable characters, at most `limit` of them and a mark where
    more was."""
    if len(text) <= limit and text.isprintable():
        return text
    # An escape is longer than its character, so this is enough of it.
    words = " ".join(text[: limit + 1].split())
    shown = _escaped(words)
    return shown if len(shown) <= limit and len(text) <= limit else shown[:limit] + CUT


def lines(text: str, *, limit: int | None = None) -> str:
    """A text of several lines, such as a log, with its line breaks and tabs. Where there is a
    `limit`, so many of its characters and a mark where more was."""
    if limit is not None and len(text) > limit:
        text = text[:limit] + CUT
    if text.isprintable():
        return text
    return "\n".join(
        "\t".join(map(_escaped, line.split("\t")))
        for line in text.replace("\r\n", "\n").split("\n")
    )


def csv_cell(text: str) -> str:
    """The text for a cell of a table: one line that no spreadsheet takes for a formula."""
    shown = one_line(text)
    return f"'{shown}" if shown.startswith(FORMULA) else shown


def _escaped(text: str) -> str:
    """Escape all characters that are not printable. Characters of other categories (controls,
    escapes, changes of the writing direction, surrogates, unassigned ones) are written as their
    numbers."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _number(ord(character)) for character in text
    )


def _number(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
