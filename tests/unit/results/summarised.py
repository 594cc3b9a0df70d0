"""Made-up runs with their results."""

from typing import Any

import fake_run

from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.protocol.records import Rows


def results(rows: Rows, **fields: Any) -> Summary:
    """The results of a run with these requests and this context."""
    return summarise(fake_run.columns_of(rows), None, fake_run.context(rows, **fields))
