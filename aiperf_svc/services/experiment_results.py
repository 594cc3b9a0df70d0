"""Collects the results of all trials of an experiment, and serves them through the API. It outlives
the trials.

To a client an experiment is one long run: the states of its trials follow each other, and only the
last one is final. The results are those of the experiment; each trial has its own results below
`trials/`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from aiperf_svc.adapters.host.tasks import Tasks
from aiperf_svc.adapters.results_api.provider import TrialResults
from aiperf_svc.adapters.results_api.run_api import RunnerMessage
from aiperf_svc.adapters.results_api.status import ExperimentStatus, ShownTrial, Status
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.config.search import Search as SearchConfig
from aiperf_svc.core.experiments.combinations import TrialRow
from aiperf_svc.core.experiments.criteria import failed_trial, searched_trial
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.experiments.headline import time_left_s
from aiperf_svc.core.experiments.machine import Finding
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.search import SearchedTrial
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.search_trials import report_of, search_machine
from aiperf_svc.core.experiments.summary import EndedTrials, finding_of, summarise_rows
from aiperf_svc.core.experiments.trials import TRIALS, Trial, folder_of, plan_trials
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.messages.events import TrialPublished
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.services.base import wall_ns
from aiperf_svc.services.base_progress import SHOWN_ROWS, shown_trial
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.serving import Serving, serve_results

if TYPE_CHECKING:
    from aiperf_svc.adapters.storage.experiment_folder import ExperimentFolder

log = logging.getLogger(__name__)


class ExperimentResults:
    """Serves status and files of an experiment."""

    def __init__(self, context: RunContext) -> None:
        self.finished = asyncio.Event()
        """Set when the results have been fetched."""
        self._context = context
        self._api: Serving | None = None
        self._results: TrialResults | None = None
        self._published: TrialPublished | None = None
        self._results_of: TrialPublished | None = None
        """The trial of `_results`. Another one may have been published since."""
        self._numbers_before = 0
        """Highest status number in earlier trials."""
        self._changed = asyncio.Event()
        self._ended = EndedTrials()
        self._searched: dict[int, SearchedTrial] = {}
        """Result of each of these trials for a search."""
        self._folder: ExperimentFolder | None = None
        self._shown: deque[ShownTrial] = deque(maxlen=SHOWN_ROWS)
        self._upload_name = _upload_name(context)
        self._uploaded_to = ""
        self._artifact_error = ""
        self._started_mono_s = monotonic()
        self._begun_mono_s = self._ended_mono_s = 0.0
        """Times at which the first trial here started, and the latest one ended."""
        self._planned = _numbers(context)
        self._cancel_reason = ""
        for each in finished_trials(context):
            self._add(each)
        self._resumed = len(self._ended.by_number)

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()
            self._api = None

    @property
    def search(self) -> SearchConfig | None:
        return self._context.config.search

    def bucket_folder(self, folder: str) -> str:
        return f"{self._upload_name}/{TRIALS}/{folder}"

    # --- from the trials -------------------------------------------------------------------------

    async def set_trial(self, published: TrialPublished) -> None:
        """Set the trial that starts, or handle the end of the experiment."""
        if published.is_over:
            await self._write(self._write_all)
        if self._published is None:
            self._begun_mono_s = monotonic()
        self._published = published
        self._note_change()

    async def set_results(self, results: TrialResults) -> None:
        """Set the records manager of the current trial, and start to serve. Raises
        EnvironmentProblem."""
        self._numbers_before = self.status().number if self._results is not None else 0
        self._results, self._results_of = results, self._published
        if self._cancel_reason:
            results.cancel(self._cancel_reason)
        self._note_change()
        if self._api is None:
            self._api = await serve_results(self, self._context)

    async def add(self, state: RunState, reason: str, results: RunResult | None) -> Finding | None:
        """Record the end of the current trial, and write the results so far. Returns the finding
        for the choice of the next trial."""
        published, current = self._published, self._results
        assert published is not None
        assert current is not None
        self._ended_mono_s = monotonic()
        trial = trial_of(published)
        # The next trial replaces the status, so keep the problem of this one. A failed trial has a
        # reason.
        if (error := current.status().artifact_error) and state is RunState.DONE:
            self._artifact_error = f"trial {trial.number}: {error}"
        own = folder_of(trial, published.attempt) if published.attempt > 1 else ""
        row, finding = self._add(TrialOutcome(trial, state.value, reason, results, own))
        self._shown.append(shown_trial(row, published.attempt))
        await self._write(partial(self._write_progress, row))
        return finding

    def _add(self, outcome: TrialOutcome) -> tuple[TrialRow, Finding | None]:
        row, result = self._ended.add(outcome), searched_trial(outcome.results, self.search)
        self._searched[row.number] = result or failed_trial(outcome.reason)
        return row, finding_of(row, result)

    def _search_report(self) -> SearchReport | None:
        """Return the state of a search; None if the experiment has none."""
        if self.search is None:
            return None
        machine = search_machine(self._context.inference)
        for row in self._ended.rows:
            # A cancelled trial does not judge its load, and is run again when the experiment is
            # resumed.
            if row.outcome.state != RunState.CANCELLED:
                machine.add(row.outcome.trial.parameters, self._searched[row.number])
        return report_of(machine)

    async def _write(self, write: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(write)
        except EnvironmentProblem as error:
            log.error("%s", error)
            self._artifact_error = str(error)

    def _write_progress(self, latest: TrialRow) -> None:
        folder = self._folder_of_experiment()
        folder.write_scenario(latest)
        folder.write_progress(self._search_report())
        folder.list_files(self._context.run_id)

    def _write_all(self) -> None:
        folder = self._folder_of_experiment()
        folder.write(self._context.run_id, self._search_report())
        if not self._context.run.upload_into:
            # Trials are already uploaded, except those that ended before this process started.
            self._uploaded_to = folder.upload()

    def _folder_of_experiment(self) -> "ExperimentFolder":
        # Reports and Parquet take long to import, and only this process needs them.
        from aiperf_svc.adapters.storage.experiment_folder import ExperimentFolder

        if self._folder is None:
            context, name = self._context, self._upload_name
            self._folder = ExperimentFolder(
                context.config, context.artifacts, self._ended, bucket_folder=name
            )
        return self._folder

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- for the API -----------------------------------------------------------------------------

    def status(self) -> Status:
        """Return the status of the current trial as part of the experiment's status."""
        published, results = self._published, self._results
        assert results is not None
        status = results.status()
        is_over = published is not None and published.is_over
        state, reason = status.state, status.reason
        if published is not None and is_over:
            state, reason = published.state.value, published.reason
        elif published is not self._results_of:
            state, reason = RunState.PENDING.value, ""
        elif RunState(status.state).is_final:
            # The next trial has not been chosen yet.
            state = RunState.PROCESSING.value
        return msgspec.structs.replace(
            status,
            number=self._numbers_before + status.number + is_over,
            state=state,
            reason=reason,
            elapsed_s=monotonic() - self._started_mono_s,
            results_ready=is_over and bool(self._ended.by_number),
            is_settled=is_over,
            artifact_error=self._artifact_error or status.artifact_error,
            uploaded_to=self._uploaded_to,
            experiment=self._experiment(),
        )

    def _experiment(self) -> ExperimentStatus | None:
        published = self._published
        if published is None:
            return None
        rows = self._ended.rows
        left_s = time_left_s(
            left=len(self._planned.difference(self._ended.by_number)),
            ended=len(rows) - self._resumed,
            took_s=self._ended_mono_s - self._begun_mono_s,
            since_s=monotonic() - self._ended_mono_s,
        )
        return ExperimentStatus(
            number=published.number,
            parameters=published.parameters,
            repetition=published.repetition,
            attempt=published.attempt,
            total=published.total,
            ended=len(rows),
            failed=sum(each.outcome.state == RunState.FAILED for each in rows),
            left_s=left_s if published.total else None,
            rows=tuple(self._shown),
        )

    async def wait_change(self, after: int, timeout_s: float) -> None:
        if self.status().number != after or self._results is None:
            return
        results, number = self._results, after - self._numbers_before
        async with Tasks() as tasks:
            tasks.start(self._changed.wait(), "next trial")
            tasks.start(results.wait_change(number, timeout_s), "status change")
            await tasks.first()

    def cancel(self, reason: str) -> None:
        self._cancel_reason = reason
        if self._results is not None:
            self._results.cancel(reason)

    def handle_message(self, message: RunnerMessage) -> None:
        if self._results is not None:
            self._results.handle_message(message)

    def collected(self) -> None:
        self.finished.set()

    def results(self) -> ExperimentResult | None:
        """Return the results of the experiment after its first trial. They do not depend on
        experiment.json, because a full disk may prevent its creation."""
        if not self._ended.by_number:
            return None
        from aiperf_svc.adapters.exports.experiment_export import experiment_result

        found = summarise_rows(self._ended.rows)
        return experiment_result(found, self._context.config, self._search_report())

    def folder(self) -> Path:
        return self._context.artifacts


def _upload_name(context: RunContext) -> str:
    """Return the bucket folder of the experiment; a pod's artifact folder has a fixed name."""
    run, experiment = context.run, context.config.experiment
    if context.results_socket is not None and experiment is not None:
        return run.upload_into or uploads.folder_of_experiment(context.artifacts, experiment)
    return run.bucket_folder(uploads.folder_of(context.config.name, context.run_id, wall_ns()))


def finished_trials(context: RunContext) -> list[TrialOutcome]:
    """Return the trials that ended before this process started, in the order of execution."""
    if not context.run.is_resumed:
        return []
    from aiperf_svc.adapters.storage.experiment_artifacts import read_finished

    return read_finished(context.artifacts)


def _numbers(context: RunContext) -> frozenset[int]:
    """Return the numbers of the planned trials; empty for a search."""
    experiment = context.config.experiment
    assert experiment is not None
    return frozenset(t.number for t in plan_trials(experiment, context.config.random_seed))


def trial_of(published: TrialPublished) -> Trial:
    return Trial(published.number, published.parameters, published.repetition)
