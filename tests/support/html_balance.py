"""Whether every element of a page that opens also closes."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br"}
"""Elements that have no end."""


class Balance(HTMLParser):
    """Reads a page; `open` has the elements that have not been closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_is_balanced(page: str) -> None:
    """Fail if an element is not closed, or closed by another one's end."""
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
