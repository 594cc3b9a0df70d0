"""Spawn, join, background, failure, stop and limit of a session tree, as exact instructions."""

import pytest

from aiperf_svc.config.load_shapes import Agentic, TrajectoryStart
from aiperf_svc.core.load.session_tree import (
    EndTree,
    Event,
    FirstTrees,
    Instruction,
    Position,
    RequestEnded,
    ScheduleRequest,
    SessionTree,
    TreeStarted,
    TreeStopped,
    last_of_streams,
    position_at,
)
from aiperf_svc.protocol.messages.dataset import PlannedRequest

SPAWN_AND_JOIN = (
    PlannedRequest(start_ns=0),
    PlannedRequest((0,), 5, start_ns=15, stream=1),
    PlannedRequest((0,), 7, start_ns=17, stream=2),
    PlannedRequest((1,), 1, start_ns=26, stream=1),
    PlannedRequest((0, 2, 3), 10, start_ns=46),
)
"""The root spawns and joins two streams. The first stream has two requests."""


def play(tree: SessionTree, *events: Event) -> list[Instruction]:
    return [instruction for event in events for instruction in tree.handle(event)]


def test_join_waits_for_the_last_child() -> None:
    assert play(
        SessionTree(SPAWN_AND_JOIN),
        TreeStarted(100),
        RequestEnded(0, 110),
        RequestEnded(2, 130),
        RequestEnded(1, 140),
        RequestEnded(3, 150),
        RequestEnded(4, 170),
    ) == [
        ScheduleRequest(0, 100),
        ScheduleRequest(1, 115),
        ScheduleRequest(2, 117),
        ScheduleRequest(3, 141),
        ScheduleRequest(4, 160),
        EndTree(is_complete=True),
    ]


def test_delay_runs_from_latest_end_not_last_report() -> None:
    requests = (PlannedRequest(), PlannedRequest(), PlannedRequest((0, 1), 10))
    assert play(
        SessionTree(requests), TreeStarted(0), RequestEnded(0, 50), RequestEnded(1, 40)
    ) == [ScheduleRequest(0, 0), ScheduleRequest(1, 0), ScheduleRequest(2, 60)]


def test_tree_waits_for_its_background_streams() -> None:
    requests = (PlannedRequest(), PlannedRequest((0,), stream=1), PlannedRequest((0,)))
    tree = SessionTree(requests)
    play(tree, TreeStarted(0), RequestEnded(0, 1))
    assert tree.handle(RequestEnded(2, 2)) == []
    assert tree.handle(RequestEnded(1, 9)) == [EndTree(is_complete=True)]


def test_failure_cancels_only_dependent_requests() -> None:
    tree = SessionTree(SPAWN_AND_JOIN)
    play(tree, TreeStarted(0), RequestEnded(0, 10))
    assert tree.handle(RequestEnded(1, 20, is_completed=False)) == []
    assert tree.handle(RequestEnded(2, 30)) == [EndTree(is_complete=False)]


def test_failed_leaf_leaves_the_other_streams() -> None:
    requests = (PlannedRequest(), PlannedRequest((0,), stream=1), PlannedRequest((0,)))
    tree = SessionTree(requests)
    play(tree, TreeStarted(0), RequestEnded(0, 1))
    assert tree.handle(RequestEnded(1, 2, is_completed=False)) == []
    assert tree.handle(RequestEnded(2, 3)) == [EndTree(is_complete=False)]


def test_start_inside_keeps_recorded_distances() -> None:
    assert SessionTree(SPAWN_AND_JOIN).handle(TreeStarted(1_000, Position(2, 15))) == [
        ScheduleRequest(2, 1_002),
        ScheduleRequest(3, 1_011),
    ]


def test_start_inside_cuts_pauses_to_the_longest() -> None:
    started = TreeStarted(1_000, Position(2, 15), longest_pause_ns=5)
    assert SessionTree(SPAWN_AND_JOIN).handle(started) == [
        ScheduleRequest(2, 1_002),
        ScheduleRequest(3, 1_005),
    ]


def test_start_inside_without_times_sends_at_once() -> None:
    requests = (PlannedRequest(), PlannedRequest((0,), 500), PlannedRequest((1,), 500))
    tree = SessionTree(requests)
    assert tree.handle(TreeStarted(10, Position(1))) == [ScheduleRequest(1, 10)]
    assert tree.handle(RequestEnded(1, 20)) == [ScheduleRequest(2, 520)]


def test_stop_sends_nothing_further() -> None:
    tree = SessionTree(SPAWN_AND_JOIN)
    play(tree, TreeStarted(0), RequestEnded(0, 10))
    assert tree.handle(TreeStopped()) == []
    assert tree.handle(RequestEnded(1, 11)) == []
    assert tree.handle(RequestEnded(2, 12)) == [EndTree(is_complete=False)]


def test_stopped_tree_does_not_wait_for_unsent_requests() -> None:
    tree = SessionTree(SPAWN_AND_JOIN)
    play(tree, TreeStarted(0), RequestEnded(0, 10))
    assert tree.handle(TreeStopped((2,))) == []
    assert tree.handle(RequestEnded(1, 11)) == [EndTree(is_complete=False)]


def test_request_limit_ends_a_tree() -> None:
    tree = SessionTree(SPAWN_AND_JOIN, limit=2)
    assert play(tree, TreeStarted(0), RequestEnded(0, 10), RequestEnded(1, 20)) == [
        ScheduleRequest(0, 0),
        ScheduleRequest(1, 15),
        EndTree(is_complete=True),
    ]
    assert not tree.has_more


@pytest.mark.parametrize(
    ("share", "done"), [(0.0, 0), (0.25, 1), (0.35, 2), (0.5, 3), (0.75, 4), (1.0, 4)]
)
def test_start_is_by_recorded_time(share: float, done: int) -> None:
    assert position_at(SPAWN_AND_JOIN, share) == Position(done, round(46 * share))


def test_start_is_by_requests_without_times() -> None:
    assert position_at([PlannedRequest()] * 8, 0.5) == Position(4)
    assert position_at([PlannedRequest()] * 8, 1.0) == Position(7)


def test_only_continuing_streams_are_warmed() -> None:
    assert last_of_streams(SPAWN_AND_JOIN, 3) == [0, 1]
    assert last_of_streams(SPAWN_AND_JOIN, 0) == []


def first_trees(low: float, high: float, warmup_requests: int = 0, seed: int = 1) -> FirstTrees:
    start = TrajectoryStart(min=low, max=high)
    return FirstTrees(Agentic(start=start, warmup_requests=warmup_requests), seed)


def test_warmup_sends_each_open_streams_last_request() -> None:
    trees = first_trees(0.5, 0.5)
    assert trees.warmup(7, SPAWN_AND_JOIN) == ([0, 1], [PlannedRequest(), PlannedRequest()])
    assert trees.position(7, SPAWN_AND_JOIN) == Position(3, 23)


def test_further_warmup_requests_move_the_start() -> None:
    trees = first_trees(0.3, 0.3, warmup_requests=2)
    assert trees.warmup(7, SPAWN_AND_JOIN) == (
        [0, 1, 2],
        [PlannedRequest(), PlannedRequest((0,)), PlannedRequest((1,))],
    )
    assert trees.position(7, SPAWN_AND_JOIN) == Position(3, 17)
    assert first_trees(0.3, 0.3, warmup_requests=99).position(7, SPAWN_AND_JOIN).done == 4


def test_starts_are_uniform_and_follow_the_seed() -> None:
    requests = [PlannedRequest(start_ns=n) for n in range(1_001)]
    drawn = [first_trees(0.25, 0.75).position(index, requests).done for index in range(400)]
    assert min(drawn) in range(250, 270)
    assert max(drawn) in range(730, 751)
    assert abs(sum(drawn) / 400 - 500) < 25
    assert drawn == [first_trees(0.25, 0.75).position(index, requests).done for index in range(400)]
    assert drawn[0] != first_trees(0.25, 0.75, seed=2).position(0, requests).done
