"""An experiment over a server in four variants, of which one ends at once and one has no node."""

from typing import Any

SLOW = ["--ttft", "200ms", "--itl", "10ms", "--tokens", "16"]
FAST = ["--ttft", "40ms", "--itl", "10ms", "--tokens", "16"]
NO_NODE = {"aiperf.test/no-node": "has-it"}


def four_servers(benchmark: dict[str, Any]) -> None:
    """A server in four variants, of which one ends at once and one has no node to run on."""
    benchmark["load"]["duration"] = "3s"
    crashing = ["--no-such-flag"]
    benchmark["experiment"] = {
        "explicit": [
            {"deployment.target.args": SLOW},
            {"deployment.target.args": crashing},
            {"deployment.target.args": SLOW, "deployment.target.placement.node_selector": NO_NODE},
            {"deployment.target.args": FAST},
        ],
        "repetitions": 2,
    }
    benchmark["deployment"]["ttl"] = "2h"
