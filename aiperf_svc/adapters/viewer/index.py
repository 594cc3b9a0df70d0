"""Finds the results below a folder and summarises each for the list."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports.experiment_file import NAME as EXPERIMENT
from aiperf_svc.adapters.exports.experiment_file import read_experiment_file
from aiperf_svc.adapters.exports.file_content import read_json
from aiperf_svc.adapters.exports.qualify_export import rows
from aiperf_svc.adapters.exports.result_files import FILES, JOINT_FILE, read_run
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.qualify.result import worst
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import parameters_text
from aiperf_svc.domain.number_text import quantity
from aiperf_svc.protocol.run_states import RunState

DEPTH = 4
"""Maximum depth of the search for results below the given folder."""
NUMBERS = 3
"""Maximum number of headline values of a run in the list."""
_STAMP = re.compile(r"-(\d{8}T\d{6})Z(-\d+)?$")
"""Timestamp in the names of artifact folders."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list: one run, one experiment, or several targets or clusters at once."""

    id: str
    """Its folder, relative to the viewed folder; `.` for the viewed folder itself."""
    kind: str
    """`inference` or the kind of a tool; `experiment`, `qualification`; `clusters` or `targets`."""
    name: str = ""
    model: str = ""
    target: str = ""
    when_wall_ns: int = 0
    """Start of a run's load; for other kinds, start of the command."""
    verdict: str = ""
    """`valid`, `degraded`, `invalid`, or `mixed` for an experiment whose trials differ."""
    slo: str = ""
    numbers: tuple[str, ...] = ()
    problem: str = ""
    """Reason why it cannot be read."""


class Index:
    """The results below a folder. Unchanged files are not read again."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[str, tuple[int, Entry]] = {}

    def scan(self) -> list[Entry]:
        """Return all entries, the newest first."""
        known: dict[str, tuple[int, Entry]] = {}
        for file in _results(self.root):
            try:
                changed_ns = file.stat().st_mtime_ns
            except OSError:
                continue  # removed in the meantime
            id_ = file.parent.relative_to(self.root).as_posix()
            before = self._known.get(id_)
            if before is None or before[0] != changed_ns:
                before = changed_ns, read_entry(id_, file)
            known[id_] = before
        # Update at once: another request may read the index at the same time.
        self._known = known
        entries = (entry for _, entry in known.values())
        return sorted(entries, key=lambda each: (-each.when_wall_ns, each.id))

    def folder(self, id_: str) -> Path:
        """Return the folder of an entry. Raises FileNotFoundError for any other name."""
        if id_ not in self._known:
            self.scan()
        if id_ not in self._known:
            raise FileNotFoundError(id_)
        return self.root / id_


def _results(root: Path) -> Iterator[Path]:
    """Yield the file with the results of each run, experiment or joint result. Runs inside an
    experiment or a joint result are skipped, and symbolic links are not followed."""
    for place, folders, files in os.walk(root):
        folder = Path(place)
        found = next((name for name in (EXPERIMENT, JOINT_FILE, *FILES) if name in files), None)
        depth = len(folder.relative_to(root).parts)
        if found is not None:
            yield folder / found
        if found is not None or depth >= DEPTH:
            folders.clear()


def read_entry(id_: str, file: Path) -> Entry:
    """Read one entry; an unreadable one has a problem."""
    try:
        if file.name == EXPERIMENT:
            return _experiment(id_, file.parent)
        return _joint(id_, file) if file.name == JOINT_FILE else _run(id_, read_run(file))
    except ConfigError as error:
        return Entry(id=id_, kind="unreadable", name=file.parent.name, problem=str(error))


def _run(id_: str, result: RunResult) -> Entry:
    numbers = []
    known, infos = result.stats, result.infos
    for tag, stat in [each for each in result.headline if each[0] in known][:NUMBERS]:
        stats, info = known[tag], infos[tag]
        value = stats.stat(stat)
        if value is not None:
            shown = f"{info.name} {stat.replace('_', '.')}"
            name = info.name if stats.is_single or stat == "avg" else shown
            numbers.append(f"{name} {quantity(value, info.unit)}")
    return Entry(
        id=id_,
        kind=result.workload,
        name=result.name,
        when_wall_ns=result.start_wall_ns,
        verdict=result.verdict,
        slo=result.slo_outcome,
        numbers=tuple(numbers),
        **_target(result.config),
    )


def _experiment(id_: str, folder: Path) -> Entry:
    result = read_experiment_file(folder)
    done = [trial for trial in result.trials if trial.state == RunState.DONE]
    verdicts = {trial.verdict for trial in done if trial.verdict}
    verdict = verdicts.pop() if len(verdicts) == 1 else "mixed" if verdicts else ""
    numbers = [f"{len(done)} of {len(result.trials)} trials", *_best(result)]
    kind = "experiment"
    if (qualified := result.qualification) is not None:
        nodes = qualified.nodes
        kind, verdict = "qualification", worst(each.verdict for *_, each in rows(qualified))
        good = sum(not node.verdict.has_failed for node in nodes)
        numbers = [f"{good} of {len(nodes)} nodes qualify"]
    return Entry(
        id=id_,
        kind=kind,
        name=result.name,
        when_wall_ns=_begin(folder / EXPERIMENT),
        verdict=verdict,
        numbers=tuple(numbers[:NUMBERS]),
        **_target(result.config),
    )


def _best(result: ExperimentResult) -> list[str]:
    if result.search is not None:
        return [result.search.result]
    found = []
    for best in result.best:
        # `request_latency_p99`: the tag and the statistic.
        tags = [tag for tag in result.metrics if best.metric.startswith(f"{tag}_")]
        tag = max(tags, key=len)
        info, stat = result.metrics[tag], best.metric.removeprefix(f"{tag}_")
        name = info.name if stat == "avg" else f"{info.name} {stat.replace('_', '.')}"
        value = quantity(best.mean, info.unit)
        found.append(f"best {name} {value} at {parameters_text(best.parameters)}")
    return found


def _begin(file: Path) -> int:
    """Return the time in the name of a file's folder, or else the file's modification time."""
    if (found := _STAMP.search(file.parent.name)) is not None:
        with contextlib.suppress(ValueError):  # the digits may not be a time
            begin = datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            return int(begin.timestamp()) * 10**9
    return file.stat().st_mtime_ns


class _Member(msgspec.Struct):
    name: str = ""


class _Search(msgspec.Struct):
    result: str = ""


class _Joint(msgspec.Struct):
    kind: str
    name: str
    verdict: str | None = None
    members: tuple[_Member, ...] = ()
    search: _Search | None = None


def _joint(id_: str, file: Path) -> Entry:
    found = read_json(file, _Joint, expected="the results of several runs")
    return Entry(
        id=id_,
        kind=found.kind,
        name=found.name,
        when_wall_ns=_begin(file),
        verdict=found.verdict or "",
        numbers=() if found.search is None else (found.search.result,),
        target=", ".join(each.name for each in found.members),
    )


def _target(config: dict[str, object]) -> dict[str, str]:
    """Return the model and address of the endpoint in a config; empty for a tool."""
    endpoint = config.get("endpoint")
    if not isinstance(endpoint, dict):
        return {}
    models = endpoint.get("models") or [endpoint.get("model") or ""]
    urls = endpoint.get("urls") or [endpoint.get("url") or ""]
    return {"model": ", ".join(map(str, models)), "target": ", ".join(map(str, urls))}


def choices(entries: Sequence[Entry], name: str) -> list[str]:
    """Return the distinct values of a field, in order, for a drop-down list."""
    return sorted({getattr(entry, name) for entry in entries} - {""})
