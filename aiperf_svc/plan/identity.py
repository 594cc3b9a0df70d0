"""Names and labels of the objects of one stack.

Every name contains the stack's name, so several stacks can share a namespace. Every object has the
stack's label, so leftovers can be found without Pulumi's state.
"""

import re

import msgspec

from aiperf_svc.domain.errors import ConfigError

STACK_LABEL = "aiperf.dev/stack"
RUN_LABEL = "aiperf.dev/run"
COMPONENT_LABEL = "app.kubernetes.io/component"
NAME_LABEL, PRODUCT = "app.kubernetes.io/name", "aiperf-svc"
"""Label of this program's pods. Pods of a release have another value, or none."""
JOB_LABEL = "batch.kubernetes.io/job-name"
"""Label that Kubernetes adds to the pods of a Job."""
RUN_ID = "AIPERF_RUN_ID"
"""Variable of the services' pods."""
TTL_ANNOTATION = "aiperf.dev/ttl-seconds"
ANCHOR = "anchor"
"""The first object in a namespace. In an existing namespace it owns all other objects."""

LEASE = "owner"
"""The Lease that names the stack's owner and the user who currently works on it."""
OWNER_ANNOTATION = "aiperf.dev/owner"
"""Annotation of the Lease: `user@host` of the last `pulumi up`."""
RENEWED_ANNOTATION = "aiperf.dev/renewed"
"""Annotation of the Lease: when the deadline's pod last renewed it."""

_STACK_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A stack and its run."""

    stack: str
    run_id: str
    version: str
    """Version of this program."""
    label: str = ""
    """Id on the objects if it is not the run's: that of an experiment whose shapes are separate
    runs, so an object that two shapes share does not change."""

    more_labels: dict[str, str] = {}
    """The user's labels for all objects and pods (`deployment.labels`)."""
    annotations: dict[str, str] = {}
    """The user's annotations for all objects and pods (`deployment.annotations`)."""

    def name(self, part: str) -> str:
        """Return the name of one of the stack's objects."""
        return f"{part}-{self.stack}"

    def labels(self, component: str = "") -> dict[str, str]:
        """Return the labels of an object, or of the pods of `component`."""
        labels = {
            **self.more_labels,
            NAME_LABEL: PRODUCT,
            "app.kubernetes.io/instance": self.stack,
            "app.kubernetes.io/version": self.version,
            "app.kubernetes.io/managed-by": "pulumi",
            STACK_LABEL: self.stack,
            RUN_LABEL: self.label or self.run_id,
        }
        if component:
            labels[COMPONENT_LABEL] = component
        return labels

    def selector(self, component: str = "") -> dict[str, str]:
        """Return labels that select pods of all runs of the stack. A selector cannot be
        changed later, and an empty one would also select the namespace owner's pods."""
        selector = {STACK_LABEL: self.stack}
        if component:
            selector[COMPONENT_LABEL] = component
        return selector


def stack_name_of(name: str) -> str:
    """Return the part of a run's name that Kubernetes names may contain."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def check_stack_name(stack: str) -> None:
    """Raise ConfigError unless Kubernetes names may contain the stack's name."""
    if not _STACK_NAME.fullmatch(stack):
        raise ConfigError(
            f"the stack's name is {stack!r}; expected at most 40 lowercase letters, digits and "
            "hyphens, with a letter or digit at both ends, because it is part of every object's "
            "name"
        )
