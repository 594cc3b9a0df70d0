"""Logs of the services."""

import logging
from collections.abc import Sequence
from typing import Any


def set_up_logs(context: Any, names: Sequence[str]) -> None:
    """Log to standard error."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {','.join(names)} %(message)s")
