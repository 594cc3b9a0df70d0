"""The tokenizer that counts the tokens of prompts and outputs."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model


class Tokenizer(Model):
    """The tokenizer that counts tokens exactly: a `tokenizer.json`, a folder that holds one, or a
    hub name."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """Tokenizer that counts tokens exactly: a `tokenizer.json`, a folder that contains one, or a
    name on the Hugging Face hub. Without one, synthetic lengths are approximate and output tokens
    come from the server's usage."""
    revision: str = "main"
    """Revision on the hub."""
    apply_chat_template: bool = False
    """Count input tokens inside the tokenizer's chat template. Synthetic prompts then have the
    requested length there."""

    @model_validator(mode="after")
    def _has_a_template(self) -> Self:
        if self.apply_chat_template and self.name is None:
            raise ValueError("{apply_chat_template} needs {name}, the tokenizer with the template")
        return self


def is_path(name: str) -> bool:
    """Return whether a name can only be a path: a hub's name is `owner/name` or `name`."""
    return name.endswith(".json") or name.startswith((".", "/", "~"))
