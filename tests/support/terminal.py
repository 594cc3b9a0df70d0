"""Output of functions that print to a console."""

from collections.abc import Callable
from io import StringIO
from typing import Any

from rich.console import Console


def on_console(show: Callable[..., Any], *args: Any, width: int = 100, **options: Any) -> str:
    """Return the output of `show(*args, console, **options)`."""
    text = StringIO()
    show(*args, Console(file=text, width=width, highlight=False), **options)
    return text.getvalue()
