"""Compares two sides of finished runs: which settings differ, and which metrics became better or
worse.

With three runs or more on each side, the run is the sample. With fewer, run-to-run noise is
unknown. The difference is then shown with the uncertainty within the runs, but not judged.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from aiperf_svc.config.experiment import VISITS
from aiperf_svc.core.compare.estimates import (
    Estimate,
    difference,
    estimate,
    holm,
    mean_of,
    paired_difference,
    share,
)
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue
from aiperf_svc.core.compare.student import CONFIDENCE
from aiperf_svc.core.quality.gate import Agreement
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.run_result import INFERENCE
from aiperf_svc.core.verdict.check_result import UNFINISHED, Severity, is_failure
from aiperf_svc.domain.errors import ConfigError, Incomparable
from aiperf_svc.domain.number_text import count

MIN_RUNS = 3
"""Minimum runs per side to judge differences."""
FLOORS = {"p50": 11, "p90": 64, "p95": 130, "p99": 662, "p99_9": 6636}
"""Minimum requests of a run for a percentile. With fewer, no value of the sample bounds it with 99%
confidence (the early-stopping rule of MLPerf's LoadGen)."""
TOLERANCE = 0.05
"""Default tolerance: the largest difference that does not matter."""
SCHEMA = "comparison/1"


class Word(StrEnum):
    """Judgement of a row."""

    WORSE = "worse"
    """The difference is real and larger than the tolerance."""
    BETTER = "better"
    """Like `worse`, in the other direction."""
    CHANGED = "changed"
    """Like `worse`, for a metric without a better direction."""
    SAME = "same"
    """The whole interval of the difference is within the tolerance."""
    UNSURE = "~"
    """Not enough data for any of the above."""
    UNJUDGED = "?"
    """Too few runs to know their noise, or a side without some of its runs."""


class SideValue(msgspec.Struct, frozen=True):
    mean: float
    half_width: float | None
    """Half of the mean's 95% interval; None if unknown."""
    n: int
    """Number of runs."""


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of one metric on both sides."""

    key: RowKey
    info: MetricInfo
    gates: bool
    """Whether it contributes to the comparison's judgement."""
    base: SideValue
    new: SideValue
    delta: float
    """(new - base) / base."""
    low: float | None
    high: float | None
    """95% interval of `delta`; None if unknown. For single runs it is the interval for the
    difference of the means over their parts, extended to `delta`."""
    p: float | None
    """Probability of such a difference between equal systems. With few runs it is estimated from
    their parts."""
    adjusted_p: float | None
    """`p` corrected for the number of gating rows (Holm); None if the row is not judged."""
    word: Word
    notes: tuple[str, ...] = ()


class Shift(msgspec.Struct, frozen=True):
    """Shift of each percentile of a metric, as a share."""

    info: MetricInfo
    shifts: dict[str, float]


class KeyDifference(msgspec.Struct, frozen=True):
    """A key of config, version or environment that differs between runs."""

    key: str
    base: tuple[str, ...]
    """Its distinct values on this side."""
    new: tuple[str, ...]


class RunName(msgspec.Struct, frozen=True):
    folder: str
    run_id: str
    verdict: str


class Side(msgspec.Struct, frozen=True):
    runs: tuple[RunName, ...]
    left_out: tuple[RunName, ...]
    """Invalid runs, and trials without usable results."""
    uptime_s: tuple[float, float] | None = None
    """Minimum and maximum uptime of the target at the start of a load; None if any of them is
    unknown."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A finished comparison. `compare --json` prints it unchanged."""

    schema_version: str = SCHEMA
    name: str = ""
    """Parameters of the compared trials; empty if there are none."""
    kind: str
    tolerance: float
    base: Side
    new: Side
    differences: tuple[KeyDifference, ...]
    rows: tuple[ComparisonRow, ...]
    shifts: tuple[Shift, ...]
    one_sided: tuple[RowKey, ...]
    """Rows that only one side has, among the headline or the requested rows."""
    warnings: tuple[str, ...] = ()
    """Why the runs are not comparable, by their own checks."""
    answers: Agreement | None = None
    """Agreement of the answers to the same quality gate, for the first run of each side."""

    @property
    def is_worse(self) -> bool:
        """True if a gating row is worse."""
        return any(row.gates and row.word is Word.WORSE for row in self.rows)

    @property
    def is_judged(self) -> bool:
        """True if every gating row is on both sides, with enough runs to be judged."""
        words = [row.word for row in self.rows if row.gates]
        return bool(words) and Word.UNJUDGED not in words and not self.one_sided

    @property
    def notes(self) -> tuple[str, ...]:
        """Distinct footnotes."""
        found = dict.fromkeys(note for row in self.rows for note in row.notes)
        answers = self.answers.lines if self.answers is not None else ()
        verdicts = {run.verdict for run in (*self.base.runs, *self.new.runs)}
        # A verdict that only some runs have is listed with the differences.
        degraded = verdicts == {Severity.DEGRADED}
        return (
            *self.warnings,
            *(("the verdict of all runs is degraded",) if degraded else ()),
            *found,
            *self._uptimes,
            *(f"only one side has {key}" for key in self.one_sided),
            *answers,
        )

    @property
    def _uptimes(self) -> tuple[str, ...]:
        base, new = self.base.uptime_s, self.new.uptime_s
        if base is None or new is None:
            return ()
        spans = [f"{low:.0f} to {high:.0f} s" for low, high in (base, new)]
        return (f"uptime of the target when the load began: base {spans[0]}, new {spans[1]}",)


class Criteria(NamedTuple):
    """Rules for comparing two sides."""

    tolerance: float = TOLERANCE
    wanted: Collection[str] = ()
    """The gating rows, as `tag` or `tag:stat`; empty: the runs' headline."""
    with_all: bool = False
    """Whether to include all other rows, which do not gate."""
    is_paired: bool = False
    """Whether the blocks of an experiment are the sample."""


def compare(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], criteria: Criteria
) -> Comparison:
    """Compare two sides. Raises Incomparable, and ConfigError for a row that no run has."""
    _refuse_shared(base, new)
    sides = _usable(base, "base"), _usable(new, "new")
    kind = _only_kind([*sides[0], *sides[1]])
    _refuse_other_rules([*sides[0], *sides[1]])
    keys = dict.fromkeys(key for run in sides[0] for key in run.values)
    common = [key for key in keys if _has(sides[1], key)]
    headline = dict.fromkeys(key for side in sides for run in side for key in run.headline)
    gating = _gating(headline, common, criteria.wanted)
    shown = [key for key in common if key in gating or criteria.with_all]
    refuse_other_units([*sides[0], *sides[1]], common if criteria.with_all else gating)
    make = _paired_row if criteria.is_paired else _row
    found = [make(key, sides, criteria.tolerance, gates=key in gating) for key in shown]
    if notes := _exclusion_notes((*base, *new), kind, is_paired=criteria.is_paired):
        found = [
            replace(row, word=Word.UNJUDGED, adjusted_p=None, notes=(*row.notes, *notes))
            for row in found
        ]
    rows = corrected(found, criteria.tolerance)
    if not rows:
        raise Incomparable("the two sides have no metric in common")
    return Comparison(
        kind=kind,
        tolerance=criteria.tolerance,
        base=_side(base),
        new=_side(new),
        differences=tuple(_differences(*sides)),
        rows=tuple(rows),
        shifts=tuple(_shifts(*sides)),
        one_sided=tuple(_one_sided(*sides, headline, criteria.wanted)),
        warnings=tuple(dict.fromkeys(text for run in (*base, *new) for text in run.warnings)),
    )


def refuse_other_units(runs: Sequence[MeasuredRun], keys: Collection[RowKey]) -> None:
    """Raise Incomparable if runs disagree about the unit or direction of one of these metrics,
    which is possible because some kinds of workloads let users name their metrics."""
    for tag in dict.fromkeys(key.tag for key in keys):
        found: dict[str, str] = {}
        for run in runs:
            if info := run.metrics.get(tag):
                better = f", {info.better} is better" if info.better else ""
                found.setdefault(f"in {info.unit or 'no unit'}{better}", run.folder)
        if len(found) > 1:
            named = "; ".join(f"{name}: {folder}" for name, folder in found.items())
            raise Incomparable(f"{tag} is not the same metric everywhere: {named}")


def _refuse_shared(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> None:
    seen: dict[str, str] = {}
    for run in (*base, *new):
        if run.run_id in seen:
            raise ConfigError(
                f"{seen[run.run_id]} and {run.folder} are the same run ({run.run_id}): name each "
                "run once"
            )
        seen[run.run_id] = run.folder


def _has(runs: Sequence[MeasuredRun], key: RowKey) -> bool:
    return any(key in run.values for run in runs)


def _usable(runs: Sequence[MeasuredRun], name: str) -> list[MeasuredRun]:
    usable = [run for run in runs if run.is_usable]
    if not usable:
        folders = ", ".join(f"{run.folder} ({run.label})" for run in runs)
        raise Incomparable(f"{name}: every run is invalid or failed: {folders}")
    return usable


def _refuse_other_rules(runs: Sequence[MeasuredRun]) -> None:
    """Raise Incomparable if runs have different steady-state rules, since a rule chosen for one
    side would decide the result."""
    rules = {run.rule: run.folder for run in runs}
    if len(rules) > 1:
        named = "; ".join(f"{folder}: {rule or 'none'}" for rule, folder in rules.items())
        raise Incomparable(
            f"the runs have different rules of the steady state (load.steady_state): {named}"
        )


def _only_kind(runs: Sequence[MeasuredRun]) -> str:
    kinds = {run.kind: run.folder for run in runs}
    if len(kinds) > 1:
        named = ", ".join(f"{folder} is a run of {kind}" for kind, folder in kinds.items())
        raise Incomparable(f"runs of different kinds: {named}")
    return next(iter(kinds))


def _one_sided(
    base: Sequence[MeasuredRun],
    new: Sequence[MeasuredRun],
    headline: Iterable[RowKey],
    wanted: Collection[str],
) -> Iterable[RowKey]:
    every = dict.fromkeys(key for run in (*base, *new) for key in run.values)
    for key in (key for key in every if _is_named(key, wanted)) if wanted else headline:
        if _has(base, key) is not _has(new, key):
            yield key


def _is_named(key: RowKey, names: Collection[str]) -> bool:
    return str(key) in names or key.tag in names


def _gating(
    headline: Collection[RowKey], common: Sequence[RowKey], wanted: Collection[str]
) -> Collection[RowKey]:
    if not wanted:
        return [key for key in headline if key in common]
    chosen: list[RowKey] = []
    for name in wanted:
        found = [key for key in common if _is_named(key, (name,))]
        if not found:
            known = ", ".join(dict.fromkeys(key.tag for key in common))
            raise ConfigError(f"no row {name!r} on both sides; they have {known}")
        chosen += found
    return chosen


def _row(
    key: RowKey,
    sides: Sequence[Sequence[MeasuredRun]],
    tolerance: float,
    *,
    gates: bool,
) -> ComparisonRow:
    values = [[run.values[key] for run in side if key in run.values] for side in sides]
    missing = _missing(key, sides)
    is_judged = min(map(len, values)) >= MIN_RUNS and not missing
    base, new = ((_between if is_judged else _within)(side) for side in values)
    means = [fmean(each.value for each in side) for side in values]
    found = None if base is None or new is None else difference(base, new)
    p = None if found is None else found.p
    delta = share(means[1] - means[0], means[0])
    row = ComparisonRow(
        key=key,
        info=next(run.metrics[key.tag] for run in sides[0] if key in run.values),
        gates=gates,
        base=SideValue(means[0], _half_width(base), len(values[0])),
        new=SideValue(means[1], _half_width(new), len(values[1])),
        delta=delta,
        low=None if found is None else min(found.low, delta),
        high=None if found is None else max(found.high, delta),
        p=p,
        adjusted_p=p if is_judged else None,
        word=Word.UNSURE if is_judged else Word.UNJUDGED,
        notes=(*_notes(key, values, missing=missing), *_few_requests(key, sides)),
    )
    return row if gates else replace(row, word=_judge_row(row, tolerance))


def _missing(key: RowKey, sides: Sequence[Sequence[MeasuredRun]]) -> int:
    """Return in how many runs a value is unknown. An unknown value may be the worst: a percentile
    that falls among cut requests."""
    return sum(key not in run.values for side in sides for run in side)


def _missing_note(key: RowKey, missing: int) -> str:
    runs = count(missing, "run")
    return f"? {key} has no value in {runs}: not judged, and its means exclude them"


def _paired_row(
    key: RowKey, sides: Sequence[Sequence[MeasuredRun]], tolerance: float, *, gates: bool
) -> ComparisonRow:
    """Return the row of blocks. A block counts if it has all its trials on both sides. If a trial
    has no value, its block is skipped and the row is not judged."""
    of_sides = [_by_block(side, key) for side in sides]
    blocks = sorted({block for side in of_sides for block in side})
    whole = [b for b in blocks if all(len(side.get(b, ())) == VISITS for side in of_sides)]
    pairs = [(fmean(of_sides[0][block]), fmean(of_sides[1][block])) for block in whole]
    found = paired_difference(pairs)
    missing = _missing(key, sides)
    is_judged = found is not None and len(pairs) >= MIN_RUNS and not missing
    means = [fmean(pair[side] for pair in pairs) if pairs else 0.0 for side in (0, 1)]
    widths = [estimate([pair[side] for pair in pairs]) for side in (0, 1)]
    notes = []
    if skipped := len(blocks) - len(whole):
        notes.append(f"blocks left out because trials of a side are missing: {skipped}")
    if missing:
        notes.append(_missing_note(key, missing))
    elif not is_judged:
        notes.append(f"? fewer than {MIN_RUNS} complete blocks: noise between blocks unknown")
    notes += _few_requests(key, sides)
    row = ComparisonRow(
        key=key,
        info=next(run.metrics[key.tag] for run in sides[0] if key in run.values),
        gates=gates,
        base=SideValue(means[0], _half_width(widths[0]), len(pairs)),
        new=SideValue(means[1], _half_width(widths[1]), len(pairs)),
        delta=share(means[1] - means[0], means[0]) if found is None else found.delta,
        low=None if found is None else found.low,
        high=None if found is None else found.high,
        p=None if found is None else found.p,
        adjusted_p=found.p if found is not None and is_judged else None,
        word=Word.UNSURE if is_judged else Word.UNJUDGED,
        notes=tuple(notes),
    )
    return row if gates else replace(row, word=_judge_row(row, tolerance))


def _exclusion_notes(runs: Sequence[MeasuredRun], kind: str, *, is_paired: bool) -> list[str]:
    """Return why nothing is judged: some runs are skipped because of one of `FAILURES`, or because
    the run failed or lost a rank, possibly due to the system. With blocks, the whole block of a
    failed run is skipped on both sides, with a note."""
    shown = "the target" if kind == INFERENCE else "the system"
    failing = [run.cause for run in runs if is_failure(run.cause)]
    unfinished = 0 if is_paired else sum(run.cause in UNFINISHED for run in runs)
    notes = []
    if failing:
        notes.append(
            f"? left out: {count(len(failing), 'run')} ({', '.join(sorted(set(failing)))}). Not "
            f"judged, because the other runs make {shown} look too good"
        )
    if unfinished:
        notes.append(
            f"? left out: {count(unfinished, 'run')} that failed. Not judged, because {shown} may "
            "be the reason, and the other runs may make it look too good"
        )
    return notes


def _by_block(side: Sequence[MeasuredRun], key: RowKey) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for run in side:
        if key in run.values:
            found.setdefault(run.block, []).append(run.values[key].value)
    return found


def _half_width(side: Estimate | None) -> float | None:
    return None if side is None else side.half_width


def _between(values: Sequence[RunValue]) -> Estimate | None:
    return estimate([each.value for each in values])


def _within(values: Sequence[RunValue]) -> Estimate | None:
    """Return the mean over the parts of the runs. It differs from the runs' own percentile, where a
    busy part has more weight, so the parts do not show that percentile's uncertainty."""
    parts = [found for each in values if (found := estimate(each.batches)) is not None]
    if len(parts) < len(values):
        return None
    return mean_of(parts)


def corrected(rows: Sequence[ComparisonRow], tolerance: float) -> list[ComparisonRow]:
    """Correct the rows for the number of gating rows, and judge them."""
    gating = [index for index, row in enumerate(rows) if row.gates and row.adjusted_p is not None]
    found = list(rows)
    for index, p in zip(gating, holm([rows[index].p or 0.0 for index in gating]), strict=True):
        row = replace(rows[index], adjusted_p=p)
        found[index] = replace(row, word=_judge_row(row, tolerance))
    return found


def _judge_row(row: ComparisonRow, tolerance: float) -> Word:
    if row.word is Word.UNJUDGED or row.low is None or row.high is None:
        return row.word
    if -tolerance <= row.low and row.high <= tolerance:
        return Word.SAME
    is_real = row.adjusted_p is not None and row.adjusted_p < 1 - CONFIDENCE
    if not is_real or abs(row.delta) <= tolerance:
        return Word.UNSURE
    return direction(row.delta, row.info)


def direction(delta: float, info: MetricInfo) -> Word:
    """Return the judgement of a difference that is significant and above the tolerance."""
    if not info.better:
        return Word.CHANGED
    return Word.BETTER if (delta > 0) is (info.better == "higher") else Word.WORSE


def _notes(key: RowKey, values: Sequence[Sequence[RunValue]], *, missing: int) -> Iterable[str]:
    if missing:
        yield _missing_note(key, missing)
    elif min(map(len, values)) < MIN_RUNS:
        if max(map(len, values)) == 1:
            yield (
                "? single runs: run-to-run noise unknown; a judgement needs at least "
                f"{MIN_RUNS} runs on each side"
            )
            if any(each.batches for side in values for each in side):
                yield (
                    "the intervals of single runs compare the means over parts of the runs, and "
                    "reach as far as the delta"
                )
        else:
            yield f"? fewer than {MIN_RUNS} runs on a side: run-to-run noise unknown"


def _few_requests(key: RowKey, sides: Sequence[Sequence[MeasuredRun]]) -> Iterable[str]:
    floor = FLOORS.get(key.stat, 0)
    min_count = min(run.values[key].count for side in sides for run in side if key in run.values)
    if 0 < min_count < floor:
        name = key.stat.replace("_", ".")
        yield f"the {name} needs {floor:,} requests in each run; the smallest run has {min_count:,}"


def _side(runs: Sequence[MeasuredRun]) -> Side:
    named = [(run.is_usable, RunName(run.folder, run.run_id, run.label)) for run in runs]
    uptimes = [run.uptime_s for run in runs if run.is_usable]
    known = [each for each in uptimes if each is not None]
    return Side(
        runs=tuple(name for is_usable, name in named if is_usable),
        left_out=tuple(name for is_usable, name in named if not is_usable),
        uptime_s=(min(known), max(known)) if known and len(known) == len(uptimes) else None,
    )


def _differences(
    base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]
) -> Iterable[KeyDifference]:
    keys = dict.fromkeys(key for run in (*base, *new) for key in run.facts)
    for key in keys:
        found = KeyDifference(key, _values(base, key), _values(new, key))
        if len({*found.base, *found.new}) > 1:
            yield found


def _values(runs: Sequence[MeasuredRun], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.facts.get(key, "none") for run in runs))


def _shifts(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun]) -> Iterable[Shift]:
    for tag, stats in base[0].shifts.items():
        moved: dict[str, float] = {}
        for stat in stats:
            ends = [
                [run.shifts[tag][stat] for run in side if stat in run.shifts.get(tag, {})]
                for side in (base, new)
            ]
            if all(ends):
                first, last = map(fmean, ends)
                moved[stat] = share(last - first, first)
        if moved:
            yield Shift(base[0].metrics[tag], moved)
