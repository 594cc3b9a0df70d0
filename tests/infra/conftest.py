"""What the tests of the Pulumi program share."""

import os

import pytest

# The program names its owner, and looks for a cluster unless there is none.
os.environ |= {"AIPERF_OWNER": "somebody@somewhere", "KUBECONFIG": "/nowhere"}

from tests.support.recording import Recording, usual_stack


@pytest.fixture(scope="module")
def usual() -> Recording:
    """The stack with nothing but the default."""
    return usual_stack()
