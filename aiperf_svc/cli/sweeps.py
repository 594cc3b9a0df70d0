"""Flags with several values: trials of an experiment, over those of a config file."""

from collections.abc import Mapping
from typing import Any


def vary(data: dict[str, Any], axes: Mapping[str, list[Any]]) -> None:
    """Make a trial for each combination of values, besides those of a file."""
    experiment = data.get("experiment")
    if experiment is None:
        experiment = data["experiment"] = {}
    if isinstance(experiment, dict):
        others = set(axes) - set(_product(experiment))
        for key in others & varied(data):
            keep(data, key)
        experiment["product"] = {**_product(experiment), **axes}


def keep(data: dict[str, Any], key: str) -> None:
    """Stop varying a key whose value a flag gives. Raises ValueError if other keys are varied
    together with it."""
    experiment = data.get("experiment")
    if not isinstance(experiment, dict):
        return
    product = _product(experiment)
    if key in product:
        del product[key]
        experiment["product"] = product
        if isinstance(experiment.get("template"), dict):
            experiment["template"].pop(key, None)
        if not varied(data) and experiment.get("repetitions", 1) == 1:
            del data["experiment"]
    elif key in varied(data):
        raise ValueError("the experiment of the file sets it for each trial; change it there")


def varied(data: Mapping[str, Any]) -> set[str]:
    """Return the keys that trials set, as far as they can be read."""
    experiment = data.get("experiment")
    if not isinstance(experiment, Mapping):
        return set()
    rows = experiment.get("explicit")
    found = {key for row in _maps(rows) for key in row}
    found |= {key for axes in _maps(experiment.get("zip")) for key in axes}
    search = experiment.get("search")
    if isinstance(search, Mapping):
        found |= {str(search.get("parameter"))}
        found |= {key for axes in _maps(search.get("parameters")) for key in axes}
    return found | set(_product(experiment))


def _product(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes of a product, which is a map, or in a saved config a list of maps."""
    return {
        key: listed for axes in _maps(experiment.get("product")) for key, listed in axes.items()
    }


def _maps(written: Any) -> list[Mapping[str, Any]]:
    listed = written if isinstance(written, list) else [written]
    return [each for each in listed if isinstance(each, Mapping)]
