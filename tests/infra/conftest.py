"""What the tests of the Pulumi program share."""

import sys
from pathlib import Path

# The program and its tests are run from their own folders, as Pulumi does it.
sys.path.insert(0, str(Path(__file__).parent))
