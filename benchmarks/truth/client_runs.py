"""One run of the product in its own folder, with everything that it wrote there."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from arro3.io import read_parquet
from numpy.typing import NDArray

from aiperf_svc.adapters.exports.parquet_export import ROW_GROUP, RUN_KEY
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.domain.request_ids import request_id

ROOT = Path(__file__).parents[2]
PREPARATION_S = 60.0
"""Time limit for everything except the load: start, registration, results, end."""


class RunFailedError(RuntimeError):
    """A run has no results. The message has its exit code and the end of its output."""


@dataclass(frozen=True)
class ClientRun:
    """The results of one run."""

    results: dict[str, Any]
    """The profile export. Our part is in `aiperf_svc`."""
    run_id: str
    records: dict[str, NDArray[Any]]
    """Columns of METRIC_DTYPE for the profiling phase."""
    verdict: dict[str, Any]
    """`verdict.json`."""
    exit_code: int
    request_ids: list[str] = field(default_factory=list)
    """Id of each record, which joins it with the server's rows."""

    @property
    def is_completed(self) -> NDArray[np.bool_]:
        """Whether each record has a complete response."""
        completed: NDArray[np.bool_] = self.records["outcome"] == Outcome.COMPLETED
        return completed


def run_client(
    url: str,
    flags: Sequence[str],
    *,
    folder: Path,
    longest_s: float,
    prepare: Callable[[], None] | None = None,
    during: Callable[["subprocess.Popen[str]"], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ClientRun:
    """Measure the mock server at `url` and read the artifacts from `folder`, which must be empty.

    `longest_s` bounds the load; `prepare` runs in the child before the command, `during` here while
    the command runs; `environ` is added to its environment. RunFailedError when there are no
    results.
    """
    command = [*OWN_PROGRAM, "profile", "-u", url]
    command += ["-m", "mock-model", "--streaming", "--artifact-dir", str(folder), "--ui", "none"]
    extra = environ or {}
    imports = os.pathsep.join(
        filter(None, (extra.get("PYTHONPATH"), str(ROOT), os.environ.get("PYTHONPATH")))
    )
    process = subprocess.Popen(
        [*command, *flags],
        env=os.environ | dict(extra) | {"PYTHONPATH": imports},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=prepare,
        text=True,
        errors="replace",
    )
    try:
        if during is not None:
            during(process)
        _, errors = process.communicate(timeout=longest_s + PREPARATION_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    path = next(folder.glob("*/records.parquet"), None)
    if path is None:
        raise RunFailedError(f"exit code {process.returncode}: {errors.strip()[-2_000:]}")
    return _read(path, process.returncode)


def _read(path: Path, exit_code: int) -> ClientRun:
    table = read_parquet(path, batch_size=ROW_GROUP).read_all()
    run_id = dict(table.schema.metadata_str)[RUN_KEY]
    records = {name: table.column(name).to_numpy() for name in table.column_names}
    is_profiling = records["phase"] == Phase.PROFILING
    records = {name: column[is_profiling] for name, column in records.items()}
    ids = [
        request_id(run_id, Phase.PROFILING, index, turn)
        for index, turn in zip(records["index"].tolist(), records["turn"].tolist(), strict=True)
    ]
    return ClientRun(
        results=json.loads((path.parent / "profile_export_aiperf.json").read_text()),
        run_id=run_id,
        records=records,
        verdict=json.loads((path.parent / "verdict.json").read_text()),
        exit_code=exit_code,
        request_ids=ids,
    )
