"""Untrusted text is made harmless, whatever it contains."""

import csv
import random
from io import StringIO

import pytest

from aiperf_svc.domain.foreign_text import CUT, csv_cell, lines, one_line
from aiperf_svc.domain.json_objects import MAX_VALUE_LENGTH, value_text

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "a\r\nforged: line",
    "\u202eevil\u2066",
    "\x00\x7f\x85\u2028\u2029",
    "\ud800\U000e0041\ufeff\u200b",
    "tab\there",
)


@pytest.mark.parametrize("text", ["", "plain", "with  two spaces", "größer 模型 🙂", "[bold]<b>=1"])
def test_printable_text_is_unchanged(text: str) -> None:
    assert one_line(text) == text
    assert lines(text) == text
    assert lines(text, limit=99) == text


def test_unprintable_characters_are_shown_as_numbers() -> None:
    assert one_line("\x1b[31mred\x1b[0m") == r"\x1b[31mred\x1b[0m"
    assert one_line("\u202egnp.exe") == r"\u202egnp.exe"
    assert one_line("\U000e0041") == r"\U000e0041"
    assert one_line("\x9b2J\x7f") == r"\x9b2J\x7f"


def test_one_line_is_printable_and_bounded() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        text = "".join(
            chance.choice((chr(chance.randrange(0x110000)), chr(chance.randrange(0x100)), "a "))
            for _ in range(chance.randrange(60))
        )
        limit = chance.randrange(1, 50)
        shown = one_line(text, limit=limit)
        assert shown.isprintable()
        assert len(shown) <= limit + len(CUT)
        shown.encode()


def test_cut_text_is_marked() -> None:
    assert one_line("x" * 501) == "x" * 500 + CUT
    assert one_line("x" * 500) == "x" * 500
    assert one_line("\x1b" * 10**6, limit=8) == r"\x1b\x1b" + CUT


def test_lines_keep_only_breaks_and_tabs() -> None:
    assert lines("one\r\n\ttwo\x1b[K\nthree\x0b\x85") == "one\n\ttwo\\x1b[K\nthree\\x0b\\x85"
    for text in HOSTILE:
        assert all(line.replace("\t", "").isprintable() for line in lines(text).split("\n"))


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " \n=1", "=\x1b"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    file = StringIO()
    csv.writer(file).writerow((csv_cell(text), "next"))
    cell, _ = next(csv.reader(StringIO(file.getvalue())))
    assert cell.startswith("'")
    assert cell.isprintable()


def test_other_cells_are_unchanged() -> None:
    assert csv_cell("Time to First Token (ms)") == "Time to First Token (ms)"


def test_cut_lines_are_marked() -> None:
    assert lines("one\ntwo\n" * 100, limit=6) == "one\ntw" + CUT


def test_long_values_keep_their_ends() -> None:
    images = [f"registry.example.com/team/inference-server:1.0.{patch}" for patch in (1, 2)]
    assert value_text(images[0]) == "registry.example.com […] ference-server:1.0.1"
    assert value_text(images[0]) != value_text(images[1])
    assert value_text("x" * MAX_VALUE_LENGTH) == "x" * MAX_VALUE_LENGTH
