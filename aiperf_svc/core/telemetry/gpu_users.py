"""Tells which GPUs of an exporter's page are used by certain pods: dcgm-exporter has their names as
labels on a cluster."""

from collections.abc import Sequence

from aiperf_svc.core.telemetry.page import Page


def used_by(page: Page, namespace: str, names: Sequence[str]) -> Page | None:
    """Return the page with the GPUs alone that are used by pods of `namespace` with these names; a
    name that ends with a hyphen is what theirs start with. None if there are none."""
    exact = frozenset(names)
    prefixes = tuple(name for name in names if name.endswith("-"))
    values = {
        series: value
        for series, value in page.values.items()
        if series.label("namespace") == namespace
        and ((pod := series.label("pod")) in exact or pod.startswith(prefixes))
    }
    return page._replace(values=values) if values else None
