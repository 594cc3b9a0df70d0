"""What the tests of the Pulumi program share."""

import os
import sys
from pathlib import Path

import pytest

# The program and its tests are run from their own folders, as Pulumi does it.
sys.path.insert(0, str(Path(__file__).parent))
# The program names its owner, and looks for a cluster unless there is none.
os.environ |= {"AIPERF_OWNER": "somebody@somewhere", "KUBECONFIG": "/nowhere"}

from program import usual_stack
from recording import Recording


@pytest.fixture(scope="module")
def usual() -> Recording:
    """The stack with nothing but the default."""
    return usual_stack()
