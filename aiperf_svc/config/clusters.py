"""The clusters of a stack that runs in several at once: `aiperf:clusters` in its file."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from aiperf_svc.config.base import Model
from aiperf_svc.config.problems import Problem, member_problems
from aiperf_svc.domain.errors import ConfigError

CLUSTERS_KEY = "aiperf:clusters"
"""Key of the clusters in a stack file."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_EXCLUDED = ("aiperf:context", "aiperf:kubeconfig")


class NamedCluster(Model):
    """One of the clusters."""

    context: str = Field(min_length=1)
    """Context of the kubeconfig."""
    kubeconfig: str | None = None
    """Path of the kubeconfig. Default: that in `KUBECONFIG`, or the usual one."""
    name: str = ""
    """Suffix of the stack's name and title of its column; empty: derived from the context."""

    @property
    def short(self) -> str:
        """The name, or the valid part of the context's name."""
        return self.name or re.sub(r"[^a-z0-9]+", "-", self.context.lower()).strip("-")


def read_clusters(settings: Mapping[str, Any], source: str) -> tuple[NamedCluster, ...]:
    """Return the clusters of a stack file with this content; none if it is for one cluster. Raises
    ConfigError that begins with `source`."""
    config = settings.get("config") or {}
    if CLUSTERS_KEY not in config:
        return ()
    listed = config[CLUSTERS_KEY]
    if not isinstance(listed, list):
        actual = "nothing" if listed is None else repr(listed)
        text = f"{actual}: expected a list such as [{{context: eu}}, {{context: us}}]"
        raise ConfigError(f"{source}: {Problem(CLUSTERS_KEY, text).line({})}")
    if wrong := member_problems(listed, NamedCluster, CLUSTERS_KEY):
        raise ConfigError(f"{source}: {'; '.join(each.line({}) for each in wrong)}")
    found = tuple(map(NamedCluster.model_validate, listed))
    problems = [*_problems(found)]
    problems += [f"{key}: {CLUSTERS_KEY} names it for each" for key in _EXCLUDED if key in config]
    if problems:
        raise ConfigError(f"{source}: {problems[0]}")
    return found


def _problems(places: tuple[NamedCluster, ...]) -> list[str]:
    if len(places) < 2:
        return [f"{CLUSTERS_KEY}: expected two clusters or more; one is chosen by aiperf:context"]
    names = [place.short for place in places]
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return [
        *(
            f"{CLUSTERS_KEY}: {name!r} cannot end a stack's name; give one with `name`, of "
            "lowercase letters, digits and hyphens"
            for name in wrong
        ),
        *(
            f"{CLUSTERS_KEY}: two are called {name}; give each a `name` of its own"
            for name in twice
        ),
    ]
