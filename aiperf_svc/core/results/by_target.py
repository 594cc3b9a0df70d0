"""The results of each of several targets of one run. A request belongs to the target that its index
chooses, so every record is in one of them, and their counts add up to those of the run.

A request that was due and never sent may have no record, and its target is then unknown. If there
are such requests, targets have no metrics of all due requests: without them they would look better
than they are.
"""

import msgspec
import numpy as np

from aiperf_svc.core.load.target_choice import target_numbers
from aiperf_svc.core.results.accounts import Accounts
from aiperf_svc.core.results.distributions import distributions
from aiperf_svc.core.results.network import network_metrics
from aiperf_svc.core.results.scalars import scalars
from aiperf_svc.core.results.summary import FinishedRun, TargetResult
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.core.stats.totals import Totals, add_up
from aiperf_svc.domain.metric_catalog import CATALOG, Population
from aiperf_svc.domain.metric_formulas import Columns
from aiperf_svc.domain.outcomes import Phase

_OF_THE_RUN = (
    "retried_request_count",
    "lost_request_count",
    "unsent_request_count",
)
"""Numbers that are known of the run only."""


def by_target(
    columns: Columns,
    clocks: ClockMap,
    context: FinishedRun,
    window: LoadWindow,
    *,
    unsent_without_row: int,
) -> tuple[TargetResult, ...]:
    """Return the results of each target over the run's window; none where there is one target."""
    urls = context.config.endpoint.all_urls
    if len(urls) == 1:
        return ()
    numbers = target_numbers(context.config, np.asarray(columns["index"]))
    found = []
    for number, url in enumerate(urls):
        mine = np.flatnonzero(numbers == number)
        some = {name: np.asarray(column)[mine] for name, column in columns.items()}
        rows = PhaseRows(some, phase=Phase.PROFILING)
        metrics = distributions(rows, unsent_without_row=0)
        if unsent_without_row:
            metrics = {
                tag: metric
                for tag, metric in metrics.items()
                if CATALOG[tag].population is not Population.DUE
            }
        metrics |= network_metrics(context.network[number : number + 1])
        values = _scalars(add_up(rows, clocks), window)
        found.append(TargetResult(url=url, metrics=metrics, scalars=values))
    return tuple(found)


def _scalars(totals: Totals, window: LoadWindow) -> dict[str, float]:
    accounts = msgspec.structs.replace(Accounts(), unsent=totals.unsent)
    values = scalars(totals, accounts, requested_rate=None, window_ns=window.duration_ns)
    return {tag: value for tag, value in values.items() if tag not in _OF_THE_RUN}
