"""Compares the folders that a user names: finds their runs, groups them, and reads the data that
the comparison needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from aiperf_svc.adapters.comparison import experiment_folders as experiments
from aiperf_svc.adapters.comparison.experiment_folders import FolderGroup
from aiperf_svc.adapters.comparison.run_folders import (
    NO_RESULTS,
    answers_agreement,
    find_runs,
    is_joint,
    left_out_runs,
    read_runs,
    refuse_joint,
    with_requests,
)
from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.adapters.exports.result_files import find_results
from aiperf_svc.adapters.report.curve_chart import NamedCurve, named
from aiperf_svc.core.compare.comparison import MIN_RUNS, Criteria
from aiperf_svc.core.compare.groups import DEFAULT, Comparisons, Group, compare_groups, group_of
from aiperf_svc.core.compare.measured_run import MeasuredRun
from aiperf_svc.core.experiments.throughput_curve import curves_of_result
from aiperf_svc.domain.errors import ConfigError


class Compared(NamedTuple):
    """A comparison, and the runs of each of its groups."""

    found: Comparisons
    groups: list[Group]


def compare_folders(
    folders: Sequence[Path],
    to: Sequence[Path] = (),
    *,
    by: str = "",
    criteria: Criteria = DEFAULT,
    with_curves: bool = False,
) -> Compared:
    """Compare two sides: the two `folders`; `folders` with the folders in `to`; or two variants of
    one experiment, with the key in `by`. `with_curves` also reads the distributions that a page
    plots. Raises ConfigError and Incomparable."""
    chosen = folder_groups(folders, to, by)
    if criteria.is_paired and not all(each.blocks and all(each.blocks.values()) for each in chosen):
        raise ConfigError(
            "--paired: needs an experiment that ran in blocks (experiment.blocks), by itself: "
            "compare EXPERIMENT --by KEY --paired"
        )
    groups = [_with_requests(read_group(each), with_curves=with_curves) for each in chosen]
    return Compared(_with_answers(compare_groups(groups, criteria), groups), groups)


def curves_of(folders: Sequence[Path]) -> list[NamedCurve]:
    """Return the curves of the experiments among the folders. Raises ConfigError."""
    results = {each: read_experiment_file(each) for each in folders if is_experiment(each)}
    names = [each.name for each in results.values()]
    found: list[NamedCurve] = []
    for folder, result in results.items():
        is_clear = names.count(result.name) == 1
        found += named(curves_of_result(result), result.name if is_clear else str(folder))
    return found


def folder_groups(
    folders: Sequence[Path], to: Sequence[Path] = (), by: str = ""
) -> Sequence[FolderGroup]:
    """Return the groups of two sides, with the arguments of `compare_folders`. Raises
    ConfigError."""
    if len(folders) == 1 and not to and is_experiment(folders[0]):
        return experiments.groups_of_variants(folders[0], by)
    if by:
        raise ConfigError("--by: compares two variants of one experiment; name its folder alone")
    base, new = _sides(folders, to)
    everything = [*base, *new]
    if all(map(is_experiment, everything)):
        return experiments.groups_of_sides(base, new)
    if all(map(is_joint, everything)):
        return _groups_of_members(base, new)
    refuse_joint(everything)
    find_runs([each for each in everything if not is_experiment(each)])
    for folder in filter(is_experiment, everything):
        experiments.refuse_several_combinations(folder)
    left_out = [[run for each in side for run in left_out_runs(each)] for side in (base, new)]
    return [FolderGroup("", find_runs(base), find_runs(new), (left_out[0], left_out[1]))]


def _groups_of_members(base: Sequence[Path], new: Sequence[Path]) -> list[FolderGroup]:
    """Return the groups of each target or cluster: its runs, or the runs of each combination of
    parameters of its experiment. Raises ConfigError."""
    groups: list[FolderGroup] = []
    everything = (each for folder in (*base, *new) for each in folder.iterdir())
    for name in sorted({each.name for each in everything if _is_member(each)}):
        one, other = (list(filter(_is_member, (f / name for f in side))) for side in (base, new))
        if all(map(is_experiment, (*one, *other))):
            found = experiments.groups_of_sides(one, other)
            groups += [
                each._replace(name=": ".join(filter(None, (name, each.name)))) for each in found
            ]
            continue
        runs = [list(filter(find_results, side)) for side in (one, other)]
        failed = [
            [experiments.failed_run(each, NO_RESULTS) for each in side if not find_results(each)]
            for side in (one, other)
        ]
        groups.append(FolderGroup(name, runs[0], runs[1], (failed[0], failed[1])))
    return groups


def _is_member(folder: Path) -> bool:
    has_results = is_experiment(folder) or find_results(folder) is not None
    return has_results or (folder / "logs").is_dir()


def _sides(folders: Sequence[Path], to: Sequence[Path]) -> tuple[Sequence[Path], ...]:
    if to:
        return folders, to
    if len(folders) != 2:
        raise ConfigError(
            "expected two folders (compare BASE NEW), several on each side (compare BASE BASE "
            "--to NEW NEW), or two variants in one experiment (compare EXPERIMENT --by KEY)"
        )
    return folders[:1], folders[1:]


def read_group(found: FolderGroup) -> Group:
    """Return a group without its runs' single requests. Raises ConfigError."""
    base, new = (
        _runs(folders, found.blocks) + failed
        for folders, failed in zip((found.base, found.new), found.failed, strict=True)
    )
    return Group(found.name, base, new)


def _runs(folders: Sequence[Path], blocks: Mapping[str, int]) -> list[MeasuredRun]:
    found = zip(folders, read_runs(folders), strict=True)
    return [replace(run, block=blocks.get(str(folder), 0)) for folder, run in found]


def _with_requests(group: Group, *, with_curves: bool) -> Group:
    """Read the single requests if they are needed: with few runs, they show how certain a
    difference is; with many, they do not matter. Pages plot them."""
    sides = group.base, group.new
    are_few = min(sum(run.is_usable for run in side) for side in sides) < MIN_RUNS
    if not are_few and not with_curves:
        return group
    base, new = (with_requests(side, batches=are_few, curves=with_curves) for side in sides)
    return group._replace(base=base, new=new)


def _with_answers(found: Comparisons, groups: Sequence[Group]) -> Comparisons:
    """Add the agreement of the answers to the questions of a quality gate."""
    own = [group_of(each, groups) for each in found.groups]
    return replace(
        found,
        groups=tuple(
            replace(each, answers=answers_agreement(group.base, group.new))
            for each, group in zip(found.groups, own, strict=True)
        ),
    )
