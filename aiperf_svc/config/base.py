"""The base of every part of the config."""

import ipaddress
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


class Model(BaseModel):
    """Base of every part of the config: immutable; an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, allow_inf_nan=False
    )

    def _is_set(self, name: str) -> bool:
        """Return whether the key differs from its default."""
        field = type(self).model_fields[name]
        return bool(getattr(self, name) != field.get_default(call_default_factory=True))

    def _first_set(self, *names: str) -> str:
        """Return the first of these keys that differs from its default; empty if none does."""
        return next(filter(self._is_set, names), "")


def repeated(names: Sequence[str]) -> str:
    """Return the first name that occurs twice in a list; empty if none does."""
    return next((name for at, name in enumerate(names) if name in names[:at]), "")


def _range(text: str) -> str:
    """Return an address range. Raises ValueError if Kubernetes would refuse it."""
    _, _, length = text.partition("/")
    try:
        ipaddress.ip_network(text, strict=False)
        if length.isdecimal():
            return text
    except ValueError:
        pass
    raise ValueError("expected an address range such as 10.0.0.0/8 or 10.1.2.3/32")


Cidr = Annotated[str, AfterValidator(_range)]
"""Address range of a NetworkPolicy."""

Verbatim = Annotated[str, StringConstraints(strip_whitespace=False)]
"""Text that keeps the white space at its ends: program arguments, file contents."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,78}[A-Za-z0-9])?$")]
"""Name of folders and columns. Names of Kubernetes objects must be shorter and simpler, which is
checked where these are built."""
