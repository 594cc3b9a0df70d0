"""`python -m aiperf_svc`."""

import sys

from aiperf_svc.cli.main import main

sys.exit(main())
