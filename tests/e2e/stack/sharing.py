"""Which scenarios run in one process when several processes run them (`make test-stack`).

pytest-xdist's own groups are names that it appends to node ids, which pytest 9.2 no longer lets
it do: the groups are without effect. So the groups are made from the node ids here.
"""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

FOLDER = "stack"
SHARED = ("test_access", "test_cannot_start", "test_pods_lost", "test_up_again")
"""Files whose tests look at the same stacks."""


def group_of(node_id: str) -> str:
    """The tests of a file that share stacks are one group. A test that shares nothing has its own
    id."""
    file = node_id.partition("::")[0]
    path = PurePosixPath(file)
    return file if path.parent.name == FOLDER and path.stem in SHARED else node_id


class BySharing(LoadScopeScheduling):
    """Sends each group to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
