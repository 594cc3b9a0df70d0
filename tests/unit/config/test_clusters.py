"""The clusters of a stack file."""

import pytest

from aiperf_svc.config.clusters import CLUSTERS_KEY, read_clusters
from aiperf_svc.domain.errors import ConfigError


def settings(clusters: object, **more: object) -> dict[str, object]:
    return {"config": {CLUSTERS_KEY: clusters, **more}}


def test_cluster_names_can_end_a_stack_name() -> None:
    contexts = [{"context": "Prod_EU.1"}, {"context": "us", "name": "america", "kubeconfig": "k"}]
    eu, us = read_clusters(settings(contexts), "f")
    assert (eu.short, us.short, us.context, us.kubeconfig) == ("prod-eu-1", "america", "us", "k")


def test_a_stack_without_them_is_for_one_cluster() -> None:
    assert read_clusters({"config": {"aiperf:context": "eu"}}, "f") == ()
    assert read_clusters({}, "f") == ()


@pytest.mark.parametrize(
    ("clusters", "more", "message"),
    [
        ([{"context": "eu"}], {}, "expected two clusters or more"),
        ([{"context": "eu"}, {"context": "EU"}], {}, "two are called eu; give each a `name`"),
        ([{"context": "eu"}, {"context": "us", "name": "U S"}], {}, "'U S' cannot end a stack's"),
        ([{"context": "eu"}, {"context": "..."}], {}, "'' cannot end a stack's name"),
        ([{"context": "eu"}, {}], {}, "aiperf:clusters.1.context: must be given"),
        ([{"contxt": "us"}], {}, "0.contxt: unknown key (value 'us'); did you mean context?"),
        (["eu", "us"], {}, "aiperf:clusters.0: 'eu': expected keys with values"),
        ("eu,us", {}, "aiperf:clusters: 'eu,us': expected a list such as [{context: eu}, "),
        (None, {}, "expected a list such as"),
        ([{"context": "eu"}, {"context": "us"}], {"aiperf:context": "x"}, "names it for each"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(
    clusters: object, more: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_clusters(settings(clusters, **more), "stacks/Pulumi.x.yaml")
    line = str(caught.value)
    assert line.startswith("stacks/Pulumi.x.yaml: ")
    assert message in line
    assert "\n" not in line
