"""The base of every part of the config."""

from pydantic import BaseModel, ConfigDict

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


class Model(BaseModel):
    """Base of every part of the config: immutable; an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, allow_inf_nan=False
    )
