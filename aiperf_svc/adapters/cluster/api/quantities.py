"""Kubernetes' quantities: `250m`, `2Gi`, `1e3`."""

import re

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?")
_FACTORS = {
    None: 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip


def parse_quantity(text: str | float) -> float:
    """Parse a quantity into base units: cores, bytes, pieces. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity")
    return float(found[1]) * _FACTORS[found[2]]


def format_quantity(value: float, resource: str) -> str:
    """Format a quantity as people write it: `250m` cores, `1.5Gi` bytes, `3` pieces."""
    if "memory" in resource or "storage" in resource:
        for unit in ("Gi", "Mi", "Ki"):
            if value >= _FACTORS[unit]:
                return f"{value / _FACTORS[unit]:.4g}{unit}"
    if resource.endswith("cpu") and 0 < value < 1:
        return f"{round(value * 1000)}m"
    return f"{value:g}"
