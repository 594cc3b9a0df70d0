"""Finds slow nodes and paths.

A node is judged by the median over its paths, so one slow peer does not make it slow. It is an
outlier if its modified z-score over the median absolute deviation of all nodes exceeds 3.5
(Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993) and its value is worse than 95% of
the median. Without the second condition, any value would be an outlier among equal nodes, whose
deviation is near 0. Below eight nodes only limits and the baseline count. A path is compared with
the other paths of its round, since a slow drift of the whole cluster affects all of them.

Pairs that are measured at the same time share links, so an outlier is only a suspect. It is
measured again with two good nodes while nothing else runs, and compared with the path between
these two.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, median_high, median_low
from typing import Any, NamedTuple, TypeVar

from aiperf_svc.core.qualify.measurements import (
    MIN_NODES,
    Measurement,
    Rules,
    StagePlan,
    is_worse,
    outliers,
)
from aiperf_svc.core.qualify.result import (
    Better,
    CheckInfo,
    CheckResult,
    NodeResult,
    PairValue,
    PathResult,
    Qualification,
    StageFacts,
    Verdict,
    worst,
)

MAX_SUSPECTS = 4
"""Maximum suspects of a stage that are measured again, worst first, so that a qualification ends.
The others are judged by their first measurement."""

GOOD_ALONE = 2
"""Number of good nodes measured again with the suspects of a stage of single nodes, so that a drift
of the whole cluster does not make a node suspect."""

Path = tuple[str, str]
FoundT = TypeVar("FoundT")


class Triangle(NamedTuple):
    """A suspect and good nodes, all pairs of which are measured again. The suspect is the first
    node, or the path from the first to the second node."""

    is_path: bool
    nodes: tuple[str, ...]


class Again(NamedTuple):
    """Result of a suspect's second measurement."""

    value: float
    share: float
    """Name of the reference, the result of good nodes."""
    of: str = "good nodes"


class Judgement:
    """Judges the nodes by the measurements so far."""

    def __init__(self, rules: Rules, measurements: Sequence[Measurement]) -> None:
        self._rules = rules
        self._first = [each for each in measurements if not each.is_repeat]
        self._repeats = [each for each in measurements if each.is_repeat]
        self.nodes = tuple(dict.fromkeys(n for each in self._first for n in each.nodes))
        """Names of the nodes that were, or should have been, measured."""
        self._memo: dict[tuple[str, str], Any] = {}
        """Cached results by the names of function and check."""

    # --- suspects --------------------------------------------------------------------------------

    def suspects(self, stage: StagePlan) -> tuple[Triangle, ...]:
        """Return the nodes of a stage to measure again: suspects with two good nodes each, or
        each suspect alone, and then good nodes."""
        found: dict[tuple[str, ...], float] = {}
        """Worst value of each suspect over its checks, as a share of the median; smaller is
        worse."""
        failing = self._failing(stage.name) if stage.nodes == "pairs" else set[str]()
        for check in self._rules.checks_of(stage.name):
            values, paths = self._node_values(check), self._paths(check)
            shares: dict[tuple[str, ...], float] = {}
            for node in (nodes := self._suspect_nodes(check)):
                shares[(node,)] = _badness(values[node], values.values(), check.better)
            for path in self._suspect_paths(check, failing.union(nodes)):
                shares[path] = _badness(paths[path], paths.values(), check.better)
            for suspect, share in shares.items():
                found[suspect] = min(share, found.get(suspect, share))
        worst_first = sorted(found, key=lambda each: (len(each), found[each]))[:MAX_SUSPECTS]
        if stage.nodes == "all" or not worst_first:
            return ()
        measured = {n for each in self._of(stage.name) if each.values for n in each.nodes} - failing
        bad = {each[0] for each in found if len(each) == 1}
        good = [node for node in self.nodes if node in measured and node not in bad]
        # The ends of suspect paths come last, since the path between them may be slow.
        good.sort(key={node for each in found for node in each}.__contains__)
        if stage.nodes == "alone":
            references = [(node,) for node in good[:GOOD_ALONE]]
            return tuple(Triangle(False, each) for each in (*worst_first, *references))
        triangles = (
            Triangle(len(each) == 2, (*each, *_beside(good, each, 3 - len(each), at)))
            for at, each in enumerate(worst_first)
        )
        return tuple(each for each in triangles if len(each.nodes) == 3)

    def failed_nodes(self, before: str) -> tuple[str, ...]:
        stages = [
            stage.name
            for stage in itertools.takewhile(lambda s: s.name != before, self._rules.stages)
        ]
        return tuple(
            node for node in self.nodes if any(self._has_failed(node, stage) for stage in stages)
        )

    def _has_failed(self, node: str, stage: str) -> bool:
        return any(
            self._node_check(check, node).verdict.has_failed
            for check in self._rules.checks_of(stage)
            if check.nodes != "all"
        )

    def _suspect_nodes(self, check: CheckInfo) -> list[str]:
        values = self._node_values(check)
        found = self._outliers(check)
        return [
            node
            for node, value in values.items()
            if node in found or self._beyond(check, node, value)
        ]

    def _suspect_paths(self, check: CheckInfo, suspects: set[str]) -> dict[Path, bool]:
        """Return the paths between other nodes that are outliers (true) or exceed a limit."""
        values = {
            path: value for path, value in self._paths(check).items() if not suspects & set(path)
        }
        found = set[Path]()
        if len(self._node_values(check)) >= MIN_NODES:
            found = outliers(self._shares_of_round(check, values), check.better)
        return {
            path: path in found
            for path, value in values.items()
            if path in found or self._limit(check, "", value)[1]
        }

    # --- values ----------------------------------------------------------------------------------

    def _of(self, stage: str) -> list[Measurement]:
        return [each for each in self._first if each.stage == stage]

    def _paths(self, check: CheckInfo) -> dict[Path, float]:
        return self._cached("paths", check, self._find_paths)

    def _node_values(self, check: CheckInfo) -> dict[str, float]:
        """Return the value of each node; in a stage of pairs, the median over its paths."""
        return self._cached("nodes", check, self._find_node_values)

    def _outliers(self, check: CheckInfo) -> set[str]:
        return self._cached(
            "outliers", check, lambda _: outliers(self._node_values(check), check.better)
        )

    def _cached(
        self, cache_name: str, check: CheckInfo, find: Callable[[CheckInfo], FoundT]
    ) -> FoundT:
        """Return the result of a function for a check, computed once."""
        key = (cache_name, check.check)
        if key not in self._memo:
            self._memo[key] = find(check)
        found: FoundT = self._memo[key]
        return found

    def _find_paths(self, check: CheckInfo) -> dict[Path, float]:
        return {
            (each.nodes[0], each.nodes[1]): each.values[check.check]
            for each in self._of(check.stage)
            if len(each.nodes) == 2 and check.check in each.values
        }

    def _find_node_values(self, check: CheckInfo) -> dict[str, float]:
        if check.nodes == "pairs":
            found: dict[str, list[float]] = defaultdict(list)
            for path, value in self._paths(check).items():
                for node in path:
                    found[node].append(value)
            is_of_three = len(found) == 3
            failing = self._failing(check.stage)
            return {
                node: _over_paths(found[node], check.better, is_of_three=is_of_three)
                for node in self.nodes
                if node in found and node not in failing
            }
        return {
            each.nodes[0]: each.values[check.check]
            for each in self._of(check.stage)
            if len(each.nodes) == 1 and check.check in each.values
        }

    def _failing(self, stage: str) -> set[str]:
        """Return the nodes most of whose paths could not be measured, since the median over the
        others does not describe them. If they are half of all nodes, single nodes are not the
        cause, and the failed paths are named instead."""
        failed, nodes = Counter[str](), Counter[str]()
        for each in self._of(stage):
            nodes.update(each.nodes)
            failed.update(each.nodes if each.problem else ())
        found = {node for node in nodes if 2 * failed[node] > nodes[node]}
        return found if 2 * len(found) < len(nodes) else set()

    def _shares_of_round(self, check: CheckInfo, values: Mapping[Path, float]) -> dict[Path, float]:
        """Return the values of these paths as shares of their round's median."""
        rounds: dict[int, dict[Path, float]] = defaultdict(dict)
        for each in self._of(check.stage):
            if (path := each.nodes) in values:
                rounds[each.round][path[0], path[1]] = values[path[0], path[1]]
        return {
            path: value / (median(trials.values()) or 1.0)
            for trials in rounds.values()
            for path, value in trials.items()
        }

    def _again(self, check: CheckInfo, nodes: tuple[str, ...]) -> Again | None:
        """Return the result of a suspect's second measurement; None if there is none."""
        by_nodes: dict[frozenset[str], list[float]] = defaultdict(list)
        one_way: list[float] = []
        for each in self._repeats:
            if each.stage == check.stage and check.check in each.values:
                by_nodes[frozenset(each.nodes)].append(each.values[check.check])
                if each.nodes == nodes:
                    one_way.append(each.values[check.check])
        suspect = frozenset(nodes)
        own_keys = [key for key in by_nodes if suspect <= key]
        # Only one direction of a path may be slow.
        own = one_way or [value for key in own_keys for value in by_nodes[key]]
        if check.nodes == "alone":
            suspects = set(self._suspect_nodes(check))
            good = [v for key, values in by_nodes.items() if not key & suspects for v in values]
            if own and not good:  # All nodes are suspects.
                usual = median(self._node_values(check).values())
                return Again(median(own), median(own) / usual, "the median") if usual else None
        elif len(nodes) == 1:
            peers = {node for key in own_keys for node in key} - suspect
            good = [value for key, values in by_nodes.items() if key <= peers for value in values]
        else:
            # The paths to a good node that was measured with both ends.
            near = [{n for key in by_nodes if end in key for n in key} - suspect for end in nodes]
            peers = set[str].intersection(*near)
            good = [
                value
                for key, values in by_nodes.items()
                if key & peers and key & suspect
                for value in values
            ]
        if not own or not good or not median(good):
            return None
        return Again(median(own), median(own) / median(good))

    # --- verdicts --------------------------------------------------------------------------------

    def _limit(self, check: CheckInfo, node: str, value: float) -> tuple[float | None, bool]:
        """Return the strictest limit of a check, and whether the value exceeds
        it."""
        baseline = self._baseline(check, node)
        found = []
        for limit in self._rules.limits:
            if limit.check == check.check and limit.value is not None:
                found.append(limit.value)
            elif limit.check == check.check and limit.share is not None and baseline is not None:
                is_lower = check.better == "lower"
                found.append(baseline / limit.share if is_lower else baseline * limit.share)
        if not found:
            return None, False
        hardest = min(found) if check.better == "lower" else max(found)
        return hardest, is_worse(value, hardest, check.better, share=1.0)

    def _baseline(self, check: CheckInfo, node: str) -> float | None:
        """Return the baseline of a node, or the median of all baselines for a new node; None
        without any baseline."""
        known = self._rules.baseline.get(check.check, {})
        return known.get(node, known.get(""))

    def _beyond(self, check: CheckInfo, node: str, value: float) -> bool:
        """Return whether a value exceeds a limit or is worse than the baseline."""
        return self._limit(check, node, value)[1] or self._baseline_text(check, node, value) != ""

    def _baseline_text(self, check: CheckInfo, node: str, value: float) -> str:
        baseline = self._baseline(check, node)
        if baseline is None or not is_worse(value, baseline, check.better):
            return ""
        return f"{value / baseline:.0%} of the baseline" if baseline else ""

    def _node_check(self, check: CheckInfo, node: str) -> CheckResult:
        values = self._node_values(check)
        value = values.get(node)
        if value is None:
            return _not_measured(check, self._skip_reason(check.stage, node))
        is_outlier = node in self._outliers(check)
        peer = self._cached("peers", check, self._find_worst_peers).get(node, "")
        return self._judged(check, (node,), value, list(values.values()), is_outlier, peer)

    def _judged(
        self,
        check: CheckInfo,
        nodes: tuple[str, ...],
        value: float,
        values: list[float],
        is_outlier: bool,
        peer: str = "",
    ) -> CheckResult:
        node = nodes[0] if len(nodes) == 1 else ""
        limit, is_beyond = self._limit(check, node, value)
        centre = median(values) if values else value
        repeats = self._again(check, nodes) if nodes else None
        shown = ""
        if repeats is not None:
            shown = (
                f"; measured again with nothing else running: {repeats.share:.0%} of {repeats.of}"
            )
        is_slow_again = repeats is None or is_worse(repeats.share, 1.0, check.better)
        is_beyond_again = repeats is None or self._limit(check, node, repeats.value)[1]
        verdict, reason = Verdict.PASS, ""
        if is_beyond and is_beyond_again:
            verdict, reason = Verdict.FAIL, f"beyond its limit{shown}"
        elif is_outlier and is_slow_again:
            verdict, reason = Verdict.FAIL, f"{value / centre:.0%} of the median{shown}"
        elif is_outlier or is_beyond:
            verdict, reason = Verdict.DEGRADED, f"slow in its first measurement only{shown}"
        elif text := self._baseline_text(check, node, value):
            verdict, reason = Verdict.DEGRADED, f"{text}{shown}"
        return CheckResult(
            check=check.check,
            verdict=verdict,
            value=value,
            limit=limit,
            median=centre,
            repeated=None if repeats is None else repeats.value,
            peer=peer,
            reason=reason,
        )

    def _find_worst_peers(self, check: CheckInfo) -> dict[str, str]:
        """Return the peer with which each node had its worst value."""
        paths, found = self._paths(check), dict[str, str]()
        for path in sorted(paths, key=lambda each: paths[each], reverse=check.better == "lower"):
            for node, peer in (path, path[::-1]):
                found.setdefault(node, peer)
        return found

    def _skip_reason(self, stage: str, node: str) -> str:
        problems = [each.problem for each in self._of(stage) if node in each.nodes and each.problem]
        earlier = [s.name for s in self._rules.stages]
        for name in earlier[: earlier.index(stage)]:
            if not problems and self._has_failed(node, name):
                return f"excluded: it failed the stage {name}"
        of_pairs = any(each.name == stage and each.nodes == "pairs" for each in self._rules.stages)
        if of_pairs and not problems and set(self.nodes) - {node} <= {*self.failed_nodes(stage)}:
            return "no good node was left as a partner"
        return problems[0] if problems else "not measured"

    # --- the result ------------------------------------------------------------------------------

    def qualification(self, nodes: Iterable[str] = ()) -> Qualification:
        """Return the verdicts. `nodes` are those that should have been measured."""
        self.nodes = tuple(dict.fromkeys((*nodes, *self.nodes)))
        of_nodes = [self._node_result(node) for node in self.nodes]
        of_paths = [path for check in self._rules.checks for path in self._path_results(check)]
        together = tuple(
            self._all_result(check) for check in self._rules.checks if check.nodes == "all"
        )
        stages = tuple(
            StageFacts(
                name=stage.name,
                nodes=stage.nodes,
                workload=stage.workload,
                planned=stage.rounds,
                ended=len({each.round for each in self._of(stage.name)}),
            )
            for stage in self._rules.stages
        )
        return Qualification(
            result=_sentence(of_nodes, of_paths, together),
            stages=stages,
            checks=self._rules.checks,
            nodes=tuple(of_nodes),
            paths=tuple(of_paths),
            all=together,
            pairs=tuple(
                PairValue(check=check.check, source=source, target=target, value=value)
                for check in self._rules.checks
                if check.nodes == "pairs"
                for (source, target), value in self._paths(check).items()
            ),
        )

    def _node_result(self, node: str) -> NodeResult:
        checks = tuple(
            self._node_check(check, node) for check in self._rules.checks if check.nodes != "all"
        )
        return NodeResult(node=node, verdict=worst(each.verdict for each in checks), checks=checks)

    def _path_results(self, check: CheckInfo) -> list[PathResult]:
        """Return the paths of a check between good nodes that did not pass."""
        if check.nodes != "pairs":
            return []
        bad = {
            node for node in self.nodes if self._node_check(check, node).verdict is not Verdict.PASS
        }
        paths = self._paths(check)
        suspects = self._suspect_paths(check, bad)
        found = [
            PathResult(
                source=path[0],
                target=path[1],
                result=self._judged(check, path, paths[path], list(paths.values()), is_outlier),
            )
            for path, is_outlier in suspects.items()
        ]
        failed = [each for each in self._of(check.stage) if len(each.nodes) == 2 and each.problem]
        return [
            *found,
            *(
                PathResult(
                    source=each.nodes[0],
                    target=each.nodes[1],
                    result=_not_measured(check, each.problem),
                )
                for each in failed
                if not bad & set(each.nodes)
            ),
        ]

    def _all_result(self, check: CheckInfo) -> CheckResult:
        trials = self._of(check.stage)
        values = [each.values[check.check] for each in trials if check.check in each.values]
        if not values:
            problems = [each.problem for each in trials if each.problem]
            if {*self.nodes} == {*self.failed_nodes(check.stage)}:
                problems.append("no node has passed all stages before it")
            return _not_measured(check, problems[0] if problems else "not measured")
        return self._judged(check, (), values[-1], [], is_outlier=False)


def _not_measured(check: CheckInfo, reason: str) -> CheckResult:
    return CheckResult(check=check.check, verdict=Verdict.NOT_MEASURED, value=None, reason=reason)


def _beside(good: Sequence[str], suspect: Sequence[str], count: int, at: int) -> tuple[str, ...]:
    """Return good nodes for a suspect, different ones for different suspects."""
    others = [node for node in good if node not in suspect]
    start = count * at % len(others) if others else 0
    return tuple((others[start:] + others[:start])[:count])


def _over_paths(values: Sequence[float], better: Better, *, is_of_three: bool) -> float:
    """Return the value of a node in a stage of pairs: the median over its paths. With three nodes,
    a slow path is half of its ends' paths, so the better of the two middle values counts."""
    if is_of_three and better:
        return median_low(values) if better == "lower" else median_high(values)
    return median(values)


def _badness(value: float, values: Iterable[float], better: Better) -> float:
    """Return a value as a share of the median, inverted for latencies."""
    share = value / (median(values) or 1.0)
    return 1 / share if better == "lower" and share else share


def _sentence(
    nodes: Sequence[NodeResult], paths: Sequence[PathResult], together: Sequence[CheckResult]
) -> str:
    failed = [node.node for node in nodes if node.verdict.has_failed]
    slow = [f"{p.source} → {p.target}" for p in paths if p.result.verdict.has_failed]
    parts = [f"{len(nodes) - len(failed):,} of {len(nodes):,} nodes qualify"]
    if failed:
        parts.append(f"failed: {', '.join(failed)}")
    if slow:
        parts.append(f"failed paths: {', '.join(dict.fromkeys(slow))}")
    if any(check.verdict.has_failed for check in together):
        parts.append("all nodes together failed")
    return "; ".join(parts)
