"""The id of a run, computed from its config. Equal configs have equal ids, whatever the order of
the keys in their maps."""

import hashlib
import json
import operator
from typing import Any, NamedTuple, TypeVar, cast

from aiperf_svc.config.base import Model
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.json_objects import Json

T = TypeVar("T")
_NESTED = (Model, dict, list, tuple)


class OrderedExperiment(NamedTuple):
    """An experiment with sorted maps, without the part that one stack runs. The configs of all its
    shapes contain it, so it is computed once for all of them."""

    experiment: Experiment
    digest: str


def order_experiment(config: Config) -> OrderedExperiment | None:
    """Return the experiment of a config with sorted maps; None if it has none."""
    if config.experiment is None:
        return None
    whole = _sorted(config.experiment.model_copy(update={"part": None}))
    text = whole.model_dump_json(exclude_defaults=True, by_alias=True)
    return OrderedExperiment(whole, hashlib.sha256(text.encode()).hexdigest())


def in_order(config: Config, experiment: OrderedExperiment | None) -> Config:
    """Return the same config with its maps sorted, so their order in a file or an engine does not
    change the run's id. `experiment` is the result of `order_experiment`."""
    made = _sorted(config.model_copy(update={"experiment": None}))
    if experiment is None or config.experiment is None:
        return made
    own = experiment.experiment.model_copy(update={"part": config.experiment.part})
    return made.model_copy(update={"experiment": own})


def run_id_of(
    config: Config, experiment: OrderedExperiment | None, *, images: str, generation: int
) -> str:
    """Return the id of the run of a config whose maps are sorted, as are its `experiment`'s."""
    chosen = non_defaults(config.model_copy(update={"experiment": None}))
    # The runner looks these up, and they may change while the same run continues.
    chosen.get("telemetry", {}).pop("exporters", None)
    chosen.get("deployment", {}).pop("api_server_cidrs", None)
    parts = [json.dumps({k: v for k, v in chosen.items() if v != {}}), images, str(generation)]
    if experiment is not None and config.experiment is not None:
        part = config.experiment.part
        parts += [experiment.digest, part.model_dump_json() if part else ""]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def non_defaults(config: Config) -> Json:
    """Return the keys whose values differ from the defaults. Image and program have the same
    version, so the defaults are the same in the pods, and reviewers see only the choices."""
    found = config.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    if "workload" in found:
        # The kind selects the model, so the model sees it as a default.
        found["workload"] = {"kind": config.kind, **found["workload"]}
    return found


def _sorted(value: T) -> T:
    """Return a value with all maps sorted: the same object if they already are."""
    # Most values of a config are scalars or empty.
    if not isinstance(value, _NESTED) or not value:
        return value
    made: Any = value
    if isinstance(value, Model):
        nested = ((name, old) for name, old in value if isinstance(old, _NESTED))
        changed = {name: new for name, old in nested if (new := _sorted(old)) is not old}
        made = value.model_copy(update=changed) if changed else value
    elif isinstance(value, dict):
        keys = sorted(value, key=str)
        new = {key: _sorted(value[key]) for key in keys}
        is_same = keys == list(value) and all(new[key] is value[key] for key in keys)
        made = value if is_same else new
    elif isinstance(value, list | tuple):
        members = [_sorted(each) for each in value]
        is_same = all(map(operator.is_, members, value))
        made = value if is_same else type(value)(members)
    return cast(T, made)
