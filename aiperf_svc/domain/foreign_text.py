"""Text from outside this program: a server, a container, a cluster, a file.

It may contain escape sequences that rewrite a terminal, characters that reverse the text after
them, line breaks that forge log lines, or a megabyte of data. `one_line` and `lines` make it safe
to show and store. They are applied where such text enters, and again where it is printed. Nothing
is dropped silently: an unprintable character becomes an escape such as `\\x1b`.
"""

LINE_LIMIT = 500
"""Characters of a text that becomes part of one line."""
MESSAGE_LIMIT = 16 * 1024
"""Maximum characters of a multi-line message: an exception may quote everything a server sent."""
CUT = " […]"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that spreadsheets interpret as a formula."""


def one_line(text: str, *, limit: int = LINE_LIMIT) -> str:
    """Return the text as one line of at most `limit` printable characters, with a mark where it was
    cut."""
    if len(text) <= limit and text.isprintable():
        return text
    # An escape is longer than its character, so this many characters suffice.
    words = " ".join(text[: limit + 1].split())
    shown = _escaped(words)
    return shown if len(shown) <= limit and len(text) <= limit else shown[:limit] + CUT


def lines(text: str, *, limit: int | None = None) -> str:
    """Return a multi-line text, such as a log, with its line breaks and tabs. With a `limit`, cut
    it to so many characters and mark the cut."""
    if limit is not None and len(text) > limit:
        text = text[:limit] + CUT
    if text.isprintable():
        return text
    return "\n".join(
        "\t".join(map(_escaped, line.split("\t")))
        for line in text.replace("\r\n", "\n").split("\n")
    )


def csv_cell(text: str) -> str:
    """Return the text of a table cell: one line that no spreadsheet interprets as a formula."""
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
