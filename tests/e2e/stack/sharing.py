"""Which scenarios run in one process when several processes run them (`make test-stack`).

pytest-xdist's own groups are names that it appends to node ids, which pytest 9.2 no longer lets
it do: the groups are without effect. So the groups are made from the node ids here.
"""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

FOLDER = "stack"
OUT_OF_TIME = ("test_up_again", "test_runner_stages", "test_runner_ephemeral")
"""Files whose stacks outlive their deadline, which a `gc` of another test would remove."""
SINGLE = ("test_runner_interrupts", "test_runner_life", "test_runner_leaks", "test_runner_kept")
"""Files whose tests share nothing."""


def group_of(node_id: str) -> str:
    """The tests of a file that share stacks are one group; those whose stacks run out of time are
    another, with those that look for such. A test that shares nothing has its own id."""
    file, _, test = node_id.partition("::")
    path = PurePosixPath(file)
    if path.parent.name != FOLDER:
        return node_id
    if path.stem in OUT_OF_TIME or "gc" in test:
        return "out of time"
    return node_id if path.stem in SINGLE else file


class BySharing(LoadScopeScheduling):
    """Sends each group to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
