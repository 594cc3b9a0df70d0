"""Tables, notes, plots and the CSV file of a run that watched its server's replicas."""

import csv
import io

from msgspec.structs import replace

from aiperf_svc.adapters.exports.scaling_export import render_csv
from aiperf_svc.adapters.report import telemetry_charts
from aiperf_svc.adapters.report.blocks import Heading, Note, Table, table_blocks
from aiperf_svc.adapters.terminal.verdict_lines import print_tables
from aiperf_svc.core.scaling.report import scaling_tables
from tests.support.scaled import FOUND, UP
from tests.support.terminal import on_console

UPS, REPLICAS = scaling_tables(FOUND)


def test_rows_have_decision_and_replica_times() -> None:
    assert UPS.rows == [
        ["1 → 2 at 30.0 s", "Deployment llm", "20.0 s", "10.0 s", "30.0 s", "1.0 s", "> 100 s"]
    ]
    (row,) = REPLICAS.rows
    assert row == [
        "llm-b", "n1", "31.0 s", "31.5 s", "40.0 s", "41.0 s", "–", "60.0 s", "61.0 s", "29.5 s",
    ]  # fmt: skip


def test_notes_have_limit_reason_and_unwatched_objects() -> None:
    assert REPLICAS.notes == [
        "the SLO holds again when 95% of the requests are within ttft 1s",
        "the autoscaler's reason: cpu above target",
        "not watched: events (forbidden)",
    ]


def test_csv_row_of_a_replica_has_its_decision() -> None:
    (row,) = csv.DictReader(io.StringIO(render_csv(FOUND).decode()))
    assert (row["replica"], row["gpus"], row["ready_s"], row["loaded_s"]) == (
        "llm-b", "2", "60.000", "",
    )  # fmt: skip
    assert (row["before"], row["after"], row["decision_s"], row["recovery_s"]) == (
        "1", "2", "10.000", "",
    )  # fmt: skip


def test_csv_has_a_decision_without_its_replicas() -> None:
    lacking = replace(FOUND, replicas=(), scale_ups=(replace(UP, replicas=()),))
    (row,) = csv.DictReader(io.StringIO(render_csv(lacking).decode()))
    assert (row["replica"], row["source"]) == ("", "Deployment llm")


def test_plots_show_counts_and_stages_over_the_run() -> None:
    counts, stages = telemetry_charts.draw_replicas(FOUND, 120.0)
    assert {each.name: each.points[-1] for each in counts.series} == {
        "desired": (120.0, 2), "ready": (120.0, 2),
    }  # fmt: skip
    named = {each.name: each.points[:2] for each in stages.series if each.name}
    assert named["image"] == [(31.5, 1.0), (41.0, 1.0)]
    assert named["in use"] == [(61.0, 1.0), (120.0, 1.0)]
    (dots,) = [each for each in stages.series if each.marks]
    assert dots.marks[0].startswith("llm-b on n1: created 31.0 s")


def test_result_is_printed_as_tables() -> None:
    text = on_console(print_tables, [UPS, REPLICAS], width=160)
    assert "1 → 2 at 30.0 s" in text
    assert "not watched: events (forbidden)" in text


def test_report_has_the_tables_of_the_terminal() -> None:
    title, ups, other, replicas, *notes = table_blocks([UPS, REPLICAS])
    assert title == Heading("Scaling")
    assert other == Heading("Replicas, in seconds from the start of the load")
    assert isinstance(ups, Table)
    assert isinstance(replicas, Table)
    assert [(cell.text, cell.style) for cell in ups.head[:3]] == [
        ("Replicas", ""), ("by", "text"), ("load changed", ""),
    ]  # fmt: skip
    assert [cell.text for cell in replicas.rows[0].cells] == list(REPLICAS.rows[0])
    assert notes[-1] == Note("Not watched: events (forbidden).")


def test_table_without_rows_shows_its_notes_only() -> None:
    bare = replace(FOUND, scale_ups=(), replicas=())
    note = "the desired number of replicas did not increase"
    text = on_console(print_tables, scaling_tables(bare))
    assert text.splitlines() == [note, "not watched: events (forbidden)"]
    _, empty, first, _ = table_blocks(scaling_tables(bare))
    assert (bool(empty), first) == (False, Note(f"{note.capitalize()}."))
