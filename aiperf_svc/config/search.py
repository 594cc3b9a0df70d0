"""The search for the highest load that meets a condition, or for the load that maximizes a
metric."""

import re
from typing import Annotated, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import Share, parse_share

_GOODPUT = re.compile(r"goodput\s*>=\s*(\S+)")
_LIMIT = re.compile(r"([a-z0-9_]+)(?::([a-z0-9]+))?\s*(<=?|>=?)\s*(\S+)")
Above0 = Annotated[int | float, Field(gt=0)]
MAX_POINTS = 14
"""Maximum number of values that a search tries."""
SLO = "slo"
"""Value of `holds`: a load holds if the objectives of `slo` hold."""


class Span(Model):
    """Values of one key that a search may try."""

    model_config = ConfigDict(serialize_by_alias=True)

    start: Annotated[Above0, Field(alias="from")]
    end: Annotated[Above0, Field(alias="to")]

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"{{from}} {self.start:g} is not below {{to}} {self.end:g}")
        return self


class Limit(NamedTuple):
    """A limit on one statistic of one metric."""

    metric: str
    stat: str
    is_upper: bool
    """True if the limit is a maximum, False if it is a minimum."""
    value: str
    """The limit as written: durations have units."""


class Search(Model):
    """Tries loads one after another, each chosen by the results so far. With `holds` it brackets
    the highest value that holds. With `maximize` it looks for the values of one or two keys at
    which a metric is highest."""

    model_config = ConfigDict(serialize_by_alias=True)

    parameter: str | None = None
    """The key that is varied."""
    start: Annotated[Above0 | None, Field(alias="from")] = None
    end: Annotated[Above0 | None, Field(alias="to")] = None
    parameters: dict[str, Span] = Field(default_factory=dict)
    """Two keys with their values, instead of `parameter`, `from` and `to`."""
    holds: str = SLO
    """`slo`, a share of good requests (`goodput >= 95%`), or a limit on a metric
    (`time_to_first_token:p99 < 500ms`)."""
    maximize: str | None = None
    """A metric, such as `output_token_throughput`."""
    precision: Annotated[Share, Field(gt=0)] = 0.05
    """Width of the bracket, as a share of its lower end; whole users where it is smaller."""
    confirm: Annotated[int, Field(gt=0, le=100)] = 3
    """Number of trials that confirm each end of the bracket."""

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        single = (self.parameter, self.start, self.end)
        if self.parameters:
            if single != (None, None, None):
                raise ValueError("{parameters} stands for {parameter}, {from} and {to}")
            if len(self.parameters) > 2:
                raise ValueError(f"{{parameters}} names {len(self.parameters)} keys; at most 2")
            if len(self.parameters) > 1 and self.maximize is None:
                raise ValueError("two {parameters} need {maximize}: a bracket has one key")
        elif self.parameter is None or self.start is None or self.end is None:
            raise ValueError("a search needs {parameter}, {from} and {to}")
        elif self.start >= self.end:
            raise ValueError(f"{{from}} {self.start:g} is not below {{to}} {self.end:g}")
        return self

    @model_validator(mode="after")
    def _aims_at_one_thing(self) -> Self:
        if self.maximize is not None and self.holds != SLO:
            raise ValueError("{maximize} and {holds} are different searches; give one of them")
        self.condition()
        return self

    @property
    def ranges(self) -> dict[str, Span]:
        """The keys that are varied, with their values."""
        if self.parameter is None:
            return dict(self.parameters)
        return {self.parameter: Span.model_validate({"from": self.start, "to": self.end})}

    @property
    def max_longer_trials(self) -> int:
        """Maximum number of longer trials: those that confirm both ends, as many again for a
        bracket that moves, and some for values that shorter trials leave undecided."""
        return 0 if self.maximize is not None else 4 * self.confirm + 6

    def condition(self) -> float | Limit | None:
        """Return the meaning of `holds`: the minimum share of good requests, a limit, or None for
        the objectives of the SLO. Raises ValueError."""
        text = self.holds.strip()
        if text == SLO:
            return None
        if found := _GOODPUT.fullmatch(text):
            return parse_share(found[1])
        found = _LIMIT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{{holds}} {text!r}: expected slo, a share such as `goodput >= 95%`, or a limit "
                "such as `time_to_first_token:p99 < 500ms`"
            )
        metric, stat, sign, value = found.groups()
        return Limit(metric, stat or "avg", sign.startswith("<"), value)
