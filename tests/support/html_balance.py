"""Checks that every opened HTML element of a page is closed."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br"}
"""Void elements, which have no end tag."""


class Balance(HTMLParser):
    """Parses a page. `open` holds the elements that are not closed yet."""

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
    """Fail if an element is not closed, or is closed by another element's end tag."""
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
