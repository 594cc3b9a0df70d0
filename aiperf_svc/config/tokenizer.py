"""The tokenizer that counts the tokens of prompts and outputs."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model


class Tokenizer(Model):
    """The tokenizer that counts tokens exactly: a `tokenizer.json`, a folder that holds one, or a
    hub name."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """Without one, synthetic lengths are approximate and output tokens come from the server's
    usage."""
    revision: str = "main"
