"""What functions print on a console."""

from collections.abc import Callable
from io import StringIO
from typing import Any

from rich.console import Console


def on_console(show: Callable[..., Any], *args: Any, width: int = 100, **options: Any) -> str:
    """Return what `show(*args, console, **options)` prints."""
    text = StringIO()
    show(*args, Console(file=text, width=width, highlight=False), **options)
    return text.getvalue()
