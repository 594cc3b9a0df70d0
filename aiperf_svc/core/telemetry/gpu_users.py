"""Selects the GPUs on an exporter's page that certain pods use. On a cluster, exporters have the
names of these pods as labels.

The names of a Deployment's pods consist of its name, a hash of the template, and five random
characters. Comparing prefixes would also match a Deployment with a longer name, such as that
of another stack in the same namespace.
"""

import re
from collections.abc import Sequence

from aiperf_svc.core.telemetry.families import exporter_of
from aiperf_svc.core.telemetry.page import Page

DEPLOYMENT = "deployment/"
"""Prefix for the name of a Deployment in a list of pods."""
_MAX_NAME = 63
_DIGIT = "[bcdfghjklmnpqrstvwxz2-9]"
"""Characters of Kubernetes' hashes and random suffixes: no vowels, no 0 and 1."""
_GENERATED_SUFFIX = re.compile(f"{_DIGIT}{{1,10}}(-?){_DIGIT}{{5}}")


def used_by(page: Page, namespace: str, users: Sequence[str]) -> Page | None:
    """Return the page reduced to GPUs that are used by pods of `namespace` with these names, or by
    pods of a Deployment, `deployment/NAME`. Returns None if there are none."""
    known = (exporter_of(series) for series in page.values)
    exporter = next((each for each in known if each is not None), None)
    if exporter is None:
        return None
    exact = frozenset(users)
    deployments = [u.removeprefix(DEPLOYMENT) for u in users if u.startswith(DEPLOYMENT)]
    values = {
        series: value
        for series, value in page.values.items()
        if series.label(exporter.namespace) == namespace
        and (
            (pod := series.label(exporter.pod)) in exact
            or any(_is_pod_of(pod, deployment) for deployment in deployments)
        )
    }
    return page._replace(values=values) if values else None


def _is_pod_of(pod: str, deployment: str) -> bool:
    if not pod.startswith(f"{deployment}-"):
        return False
    made = _GENERATED_SUFFIX.fullmatch(pod, len(deployment) + 1)
    # Kubernetes drops the hyphen from names that would be too long.
    return made is not None and (made[1] == "-" or len(pod) == _MAX_NAME)
