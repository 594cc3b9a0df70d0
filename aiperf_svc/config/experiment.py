"""Several trials of one config: which keys vary, how often each trial runs, and in what order.

The rest of the config is the template of the trials. Each trial sets some of its keys, by their
dotted paths.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from aiperf_svc.config.base import Model, repeated
from aiperf_svc.config.concurrency_regions import curve_points
from aiperf_svc.config.search import Search
from aiperf_svc.config.units import DurationNs, PositiveDurationNs
from aiperf_svc.domain.json_objects import Parameters

CURVE = "mlperf-endpoints"
"""Preset with the trials of a curve."""
MAX_TRIALS = 10_000
"""Maximum number of trials of an experiment, repetitions included."""


REPLACEMENTS = 2
"""Maximum number of trials of an experiment that are repeated because their verdict is invalid. A
machine that was briefly busy invalidates one or two. A stack's lifetime must cover their time."""


def _axes(value: Any) -> Any:
    """Make one map per key. This keeps the order of the keys, which is the order of the trials, in
    a config whose maps are sorted."""
    if isinstance(value, list | tuple):
        pairs = [pair for each in value if isinstance(each, Mapping) for pair in each.items()]
        if len(pairs) != len(value):
            raise ValueError("expected keys with a list of values each")
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError("expected keys with a list of values each")
    for key, values in pairs:
        if not isinstance(values, list | tuple):
            raise ValueError(f"{key}: expected a list of values, not {values!r}")
        if not values:
            raise ValueError(f"{key}: the list is empty; give at least one value")
    return tuple({key: values} for key, values in pairs)


Axes = Annotated[tuple[dict[str, tuple[Any, ...]], ...], BeforeValidator(_axes)]
"""Keys, each with its values."""


MAX_PARALLEL_STACKS = 100
"""Maximum number of shapes that run at the same time in separate stacks. Each needs processes on
the machine of the command."""


def _parallel(value: Any) -> Any:
    is_whole = isinstance(value, str) and value.isdecimal()
    is_whole = is_whole or (isinstance(value, float) and value.is_integer())
    number = int(value) if is_whole else value
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if number != "auto" and not (is_number and 1 <= number <= MAX_TRIALS):
        raise ValueError(f"expected a number from 1 to {MAX_TRIALS}, or auto")
    return number


Parallel = Annotated[int | Literal["auto"], BeforeValidator(_parallel)]


class Part(Model):
    """The trials of one shape: those that run in the same processes or pods."""

    trials: tuple[int, ...]
    """Their numbers among all trials of the experiment."""
    given: tuple[str, ...] = ()
    """Keys whose values the rest of the config has already, as these processes or pods need
    them."""


class Blocks(Model):
    """Visits of two values in turn, so that a slow drift of the system is the same for both."""

    over: Annotated[str, Field(min_length=1)]
    """Key of `product` with the two values that are compared: `endpoint.url`,
    `deployment.target.image`."""
    count: Annotated[int, Field(ge=1, le=250)] = 6
    """Number of blocks. Each visits both values twice: ABBA or BAAB, drawn from `random_seed`."""
    restart: bool = True
    """Restart the stack's own target for each visit. If false, consecutive visits of one value
    share its pods."""
    uptime: PositiveDurationNs | None = None
    """Uptime of the target's container at which the first load of each visit begins, its warmup
    included. A visit whose services are ready later fails. Default: as soon as they are ready."""

    @model_validator(mode="after")
    def _has_uptime_of_own_target(self) -> Self:
        if self.uptime is not None and not self.restarts_target:
            raise ValueError(
                "{uptime} is that of a target which each visit starts: {over} must be below "
                "deployment.target, and {restart} on"
            )
        return self

    @property
    def restarts_target(self) -> bool:
        """Whether the stack starts its target again for each visit."""
        return self.restart and f"{self.over}.".startswith("deployment.target.")


VISITS = 2
"""Number of visits of each value in a block."""


class Experiment(Model):
    """The trials: the union of `product`, `zip` and `explicit`, or those of a search.

    A trial that does not set a key that other trials set takes its value from the template. Trials
    with equal settings run once.
    """

    product: Axes = ()
    """Run a trial for every combination of the values of these keys. The first key changes
    slowest."""
    zip: Axes = ()
    """Lists of equal length, combined element by element."""
    explicit: tuple[Parameters, ...] = ()
    """Single trials; `{}` is the template itself."""
    repetitions: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Number of times that each trial is run, with the same seed."""
    order: Literal["interleaved", "grouped", "shuffled"] = "interleaved"
    """Order of the trials: `interleaved`, all once, then all again, so a slow drift of the system
    affects all alike; `grouped`, all repetitions of one before the next; or `shuffled` by
    `random_seed`."""
    blocks: Blocks | None = None
    """Compare two values of a key in blocks, instead of `repetitions` and `order`."""
    cooldown: DurationNs = 0
    """Time between the end of a trial and the start of the next."""
    on_failure: Literal["continue", "stop"] = "continue"
    """Whether further trials run after one has failed."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """Number of times that a failed trial is retried before it counts as failed."""
    parallel: Parallel = 1
    """Number of shapes (trials on the same pods) that may run at the same time on a cluster.
    `auto`: as many as its nodes have room for. 1: one after another, in one stack."""
    fan_out: Literal["stacks", "jobs"] = "stacks"
    """How shapes run at the same time: each in its own stack, or as indexes of Jobs in one stack,
    where the server and the load generator share a pod."""
    priority: tuple[Parameters, ...] = ()
    """Parameters of trials that start early: shapes with a trial that matches the first entry start
    first, then those that match the second, and so on, then all others."""
    search: Search | None = None
    """Search for the highest value of a key at which every SLO holds, instead of running a list."""
    scenario: (
        Literal["server", "interactive", "offline", "single-stream", "multi-stream"] | None
    ) = None
    """MLPerf scenario, which sets the load and the metric."""
    preset: Literal["mlperf-endpoints"] | None = None
    """Predefined trials. `mlperf-endpoints`: the seven concurrencies of a curve up to
    `max_concurrency`, under the load that MLPerf Endpoints 1.0 requires."""
    max_concurrency: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    """Highest concurrency of the preset."""
    template: Parameters = Field(default_factory=dict)
    """Values that the varied keys have in the template, null if it has none. Filled in when a
    config is read."""
    part: Part | None = None
    """Trials that are run; None: all of them. Filled in when an experiment has several shapes."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        """Add the trials of the preset. A config that was saved with them already has them."""
        if not isinstance(data, Mapping) or data.get("preset") != CURVE:
            return data
        highest = str(data.get("max_concurrency"))
        if not highest.isdecimal():
            raise ValueError(f"{{preset}} {CURVE} needs {{max_concurrency}}, a number of users")
        try:
            trials = {"load.concurrency": curve_points(int(highest))}
        except ValueError as error:
            raise ValueError(f"{{max_concurrency}}: {error}") from error
        written = {k: tuple(v) for axis in _axes(data.get("product", ())) for k, v in axis.items()}
        if written and written != trials:
            raise ValueError(f"{{preset}} {CURVE} has its own trials; leave out {{product}}")
        return {**data, "product": trials}

    @model_validator(mode="after")
    def _preset_is_alone(self) -> Self:
        if self.preset is None:
            if self.max_concurrency is not None:
                raise ValueError(f"{{max_concurrency}} needs {{preset}} {CURVE}")
            return self
        if other := self._first_set("zip", "explicit", "search", "scenario"):
            raise ValueError(f"{{preset}} {self.preset} has its own trials; leave out {{{other}}}")
        return self

    @model_validator(mode="after")
    def _is_an_experiment(self) -> Self:
        listed = self._first_set("product", "zip", "explicit")
        if self.search is not None:
            if listed:
                raise ValueError(f"{{search}} chooses its trials itself; leave out {{{listed}}}")
            if self.repetitions > 1:
                raise ValueError(
                    "{search} repeats what it found; leave out {repetitions}, or set "
                    "{search.confirm}"
                )
            if key := self._first_set("parallel", "fan_out", "priority"):
                raise ValueError(f"{{search}} has one shape, in one stack; leave out {{{key}}}")
            if self.scenario not in (None, "server", "interactive"):
                raise ValueError(
                    f"{{search}} finds the highest rate of {{scenario}} server or interactive; "
                    f"{self.scenario} has none"
                )
        elif not listed and self.repetitions == 1 and self.scenario is None:
            raise ValueError(
                "an experiment needs {product}, {zip}, {explicit}, {repetitions}, {search}, "
                "{scenario} or {preset}"
            )
        return self

    @model_validator(mode="after")
    def _has_two_values_in_blocks(self) -> Self:
        if self.blocks is None:
            return self
        others = ("repetitions", "order", "parallel", "fan_out", "priority")
        if key := self._first_set(*others, "search", "zip", "explicit"):
            raise ValueError(
                f"{{blocks}} decides which trials run in what order; leave out {{{key}}}"
            )
        values = [axis[self.blocks.over] for axis in self.product if self.blocks.over in axis]
        if not values or len({_canonical({"": each}) for each in values[0]}) != 2:
            raise ValueError(f"{{blocks.over}}: {self.blocks.over} needs two values in {{product}}")
        if self.blocks.uptime is not None and self.retries:
            raise ValueError(
                "{blocks.uptime}: a trial that is run again begins at another uptime; leave out "
                "{retries}"
            )
        if self.size > MAX_TRIALS:
            raise ValueError(f"{self.size:,} trials; expected at most {MAX_TRIALS:,}")
        return self

    @model_validator(mode="after")
    def _fits_the_command(self) -> Self:
        if (
            self.fan_out == "stacks"
            and self.parallel != "auto"
            and self.parallel > MAX_PARALLEL_STACKS
        ):
            raise ValueError(
                f"{{parallel}}: {self.parallel} stacks at the same time; expected at most "
                f"{MAX_PARALLEL_STACKS}, or {{fan_out}}: jobs"
            )
        return self

    @model_validator(mode="after")
    def _lists_fit(self) -> Self:
        for name in ("product", "zip"):
            keys = [key for axis in getattr(self, name) for key in axis]
            if twice := repeated(keys):
                raise ValueError(f"{{{name}}}: {twice} is given twice; give each key once")
        lengths = {key: len(values) for axis in self.zip for key, values in axis.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise ValueError(f"{{zip}} needs lists of equal length: {listed}")
        permutations = math.prod(len(v) for axis in self.product for v in axis.values())
        permutations += next(iter(lengths.values()), 0) + len(self.explicit)
        if permutations * self.repetitions > MAX_TRIALS:
            raise ValueError(
                f"{permutations * self.repetitions:,} trials; expected at most {MAX_TRIALS:,}"
            )
        return self

    @model_validator(mode="after")
    def _priorities_are_of_trials(self) -> Self:
        if self.search is not None or not self.priority:
            return self
        permutations = self.permutations()
        for wanted in self.priority:
            listed = ", ".join(f"{key}: {value}" for key, value in wanted.items())
            if not wanted or not any(has_parameters(row, wanted) for row in permutations):
                raise ValueError(f"{{priority}}: no trial has {listed or 'an empty entry'}")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that at least one trial sets."""
        if self.search is not None:
            return tuple(self.search.ranges)
        listed = [key for axis in (*self.product, *self.zip) for key in axis]
        # The order of the keys in a map is lost on the way to a cluster.
        return tuple(dict.fromkeys([*listed, *sorted({k for row in self.explicit for k in row})]))

    @property
    def replacements(self) -> int:
        """Maximum number of trials that are repeated because their verdict is invalid: a mean over
        repetitions needs all of them. A search chooses its own next trial, and a trial at a fixed
        uptime of the target cannot be repeated."""
        in_blocks = self.blocks is not None and self.blocks.uptime is None
        is_repeated = self.repetitions > 1 or in_blocks
        return REPLACEMENTS if is_repeated and self.search is None else 0

    def list_of(self, key: str) -> str:
        """Return the part of the experiment (`product`, …) that first sets a key."""
        lists = {"product": self.product, "zip": self.zip, "explicit": self.explicit}
        return next((name for name, rows in lists.items() if any(key in r for r in rows)), "search")

    def permutations(self) -> list[Parameters]:
        """Return the distinct trials' settings, with a value for every key; empty for a search."""
        if self.search is not None:
            return []
        rows = list(itertools.chain(_product(self.product), _zip(self.zip), self.explicit)) or [{}]
        complete = ({k: row.get(k, self.template.get(k)) for k in self.keys} for row in rows)
        distinct: dict[str, Parameters] = {}
        for row in complete:
            distinct.setdefault(_canonical(row), row)
        return list(distinct.values())

    @property
    def size(self) -> int:
        """Number of trials; 0 for a search."""
        blocks = self.blocks.count * VISITS if self.blocks is not None else 1
        return len(self.permutations()) * self.repetitions * blocks

    def first(self) -> Parameters:
        """Return the settings of the first permutation, which complete the template. Empty for the
        template of a part, which is complete."""
        if self.part is not None:
            return {}
        if self.search is not None:
            return {key: found.start for key, found in self.search.ranges.items()}
        return self.permutations()[0]


def _product(axes: Iterable[Mapping[str, Iterable[Any]]]) -> Iterator[Parameters]:
    lists = {key: values for axis in axes for key, values in axis.items()}
    if lists:
        for values in itertools.product(*lists.values()):
            yield dict(zip(lists, values, strict=True))


def _zip(axes: Iterable[Mapping[str, Iterable[Any]]]) -> Iterator[Parameters]:
    lists = {key: values for axis in axes for key, values in axis.items()}
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


def has_parameters(parameters: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a trial with these parameters has the wanted ones."""
    own = {key: parameters[key] for key in wanted if key in parameters}
    return _canonical(own) == _canonical(wanted)


def _canonical(parameters: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal parameters: 4 and 4.0 are one value."""
    plain = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in parameters.items()
    }
    return json.dumps(plain, sort_keys=True, default=str)
