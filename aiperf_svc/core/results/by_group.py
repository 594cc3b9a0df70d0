"""The results of a run by target and by model.

A request was sent to the target in its record, for the model of its dataset entry. So every record
is in one group, and the groups' counts add up to those of the run.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.load.model_choice import model_numbers
from aiperf_svc.core.results import slo
from aiperf_svc.core.results.distributions import distributions_of_part, network_metrics
from aiperf_svc.core.results.inference_result import GroupStats
from aiperf_svc.core.results.scalars import measured_scalars, scalars
from aiperf_svc.core.results.summary import FinishedRun, MetricSummary, NetworkTimes, metric_stats
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.core.stats.totals import add_up
from aiperf_svc.domain.metric_formulas import Columns


class Groups:
    """Divides the records of a run into groups."""

    def __init__(
        self,
        columns: Columns,
        clocks: ClockMap,
        context: FinishedRun,
        window: LoadWindow,
        *,
        unsent_without_row: int,
    ) -> None:
        self._columns, self._clocks, self._window = columns, clocks, window
        self._context = context
        self._has_unsent = unsent_without_row > 0

    def by_target(self) -> tuple[GroupStats, ...]:
        """Return the results of each URL; empty with a single URL."""
        numbers = np.asarray(self._columns["target"])
        return self._divided(self._context.config.endpoint.all_urls, numbers, self._context.network)

    def by_model(self) -> tuple[GroupStats, ...]:
        """Return the results of each model; empty with a single model."""
        models = self._context.config.endpoint.all_models
        if len(models) == 1:
            return ()
        entries = np.asarray(self._columns["entry"])
        return self._divided(models, model_numbers(self._context.config, entries))

    def _divided(
        self,
        names: Sequence[str],
        numbers: NDArray[np.integer],
        network: Sequence[NetworkTimes] = (),
    ) -> tuple[GroupStats, ...]:
        if len(names) == 1:
            return ()
        return tuple(
            self._result(name, np.flatnonzero(numbers == at), network_metrics(network[at : at + 1]))
            for at, name in enumerate(names)
        )

    def _result(
        self, name: str, places: NDArray[np.int64], network: dict[str, MetricSummary]
    ) -> GroupStats:
        some = {key: np.asarray(column)[places] for key, column in self._columns.items()}
        rows = PhaseRows(some)
        metrics = distributions_of_part(rows, has_unsent=self._has_unsent)
        numbers = measured_scalars(
            add_up(rows, self._clocks),
            None,
            requested_rate=None,
            window_ns=self._window.duration_ns,
        )
        numbers |= slo.good_requests(rows, self._context.config.slo.goodput)
        return GroupStats(
            name=name, metrics=metric_stats(metrics | network, scalars(rows, numbers))
        )
