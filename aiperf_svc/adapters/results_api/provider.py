"""Defines what a records manager offers to those that ask about its run."""

from pathlib import Path
from typing import Any, Protocol

from aiperf_svc.adapters.results_api.status import Status


class ResultsProvider(Protocol):
    """Provider of what the API serves, implemented by the records manager."""

    def status(self) -> Status:
        """Status of the run."""
        ...

    async def wait_change(self, after: int, timeout_s: float) -> None:
        """Wait until the status has another number than `after`, or the time is up."""
        ...

    def cancel(self, reason: str) -> None:
        """Request the end of the run."""
        ...

    def collected(self) -> None:
        """Take in that the results were fetched, so that this process may end."""
        ...

    def summary(self) -> dict[str, Any] | None:
        """Content of profile_export_aiperf.json, once it is computed."""
        ...

    def folder(self) -> Path:
        """Folder of the artifacts."""
        ...

    def manifest(self) -> dict[str, Any] | None:
        """Content of manifest.json, once it is written."""
        ...
