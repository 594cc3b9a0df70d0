"""What is taken from the output of a command."""

from aiperf_svc.workloads.gathering import newest_lines


def test_lines_are_whole_and_newest_first() -> None:
    assert newest_lines("one\ntwo\rthree\nfou") == ["three", "two", "one"]
    assert newest_lines("on") == [""]
