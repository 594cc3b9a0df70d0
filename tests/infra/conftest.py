"""Fixtures for tests of the Pulumi program."""

import os

import pytest

# The program determines its owner, and looks for a cluster unless a variable names none.
os.environ |= {"AIPERF_OWNER": "somebody@somewhere", "KUBECONFIG": "/nowhere"}

from tests.support.recording import Recording, usual_stack


@pytest.fixture(scope="module")
def usual() -> Recording:
    """Return the recorded stack with default settings."""
    return usual_stack()
