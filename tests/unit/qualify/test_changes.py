"""Two qualifications are compared node by node and exported as files, baselines and labels."""

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.node_labels import changes_of, label_nodes
from aiperf_svc.adapters.exports import experiment_file
from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.qualify_export import (
    JSON_NAME,
    baseline_of,
    read_qualification,
    render_csv,
)
from aiperf_svc.adapters.report.qualify_page import heat_map
from aiperf_svc.adapters.terminal.qualify_tables import print_qualification
from aiperf_svc.adapters.trackers import webhook
from aiperf_svc.cli.main import main
from aiperf_svc.config.artifacts import Artifacts, Webhook
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.qualify.changes import changes
from aiperf_svc.core.qualify.result import Qualification, Verdict
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.fake_nodes import USUAL, FakeNodes
from tests.support.terminal import on_console


def qualified(count: int = 8, **keys: Any) -> Qualification:
    cluster = FakeNodes(count, **keys)
    return cluster.qualify(cluster.rules(["pairs"]))[0]


def folder_of(found: Qualification, path: Path) -> Path:
    path.mkdir()
    (path / JSON_NAME).write_bytes(json_file(found))
    return path


def test_changes_are_named_by_node() -> None:
    base = qualified(8, nodes={"n2": 0.9})
    new = qualified(9, nodes={"n1": 0.8})
    found = {each.node: each for each in changes(base, new)}
    shown = {node: each.change for node, each in found.items() if each.change != "same"}
    assert shown == {"n1": "worse", "n2": "better", "n8": "new"}
    assert found["n1"].share == pytest.approx(0.8)
    assert (found["n1"].base_verdict, found["n1"].new_verdict) == ("pass", "fail")


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize(("tolerance", "change"), [(0.1, "worse"), (0.3, "same"), (1.0, "same")])
def test_tolerance_decides_which_is_worse(better: str, tolerance: float, change: str) -> None:
    base, new = qualified(2, better=better), qualified(2, better=better, nodes={"n1": 0.8})
    assert {each.change for each in changes(base, new, tolerance=tolerance)} == {change}


def test_missing_node_is_gone() -> None:
    assert [
        each.change for each in changes(qualified(9), qualified(8)) if each.change != "same"
    ] == ["gone"]


def test_check_of_one_side_is_gone_or_new() -> None:
    found = qualified(2)
    (info,) = found.checks
    nodes = (
        replace(each, checks=tuple(replace(check, check="disk") for check in each.checks))
        for each in found.nodes
    )
    other = replace(found, checks=(replace(info, check="disk"),), nodes=tuple(nodes))
    words = [(each.node, each.check, each.change) for each in changes(found, other)]
    assert words == [
        *((f"n{n}", "pairs_speed", "gone") for n in range(2)),
        *((f"n{n}", "disk", "new") for n in range(2)),
    ]


def test_node_that_is_measured_again_is_new() -> None:
    found = qualified(2)
    first, other = found.nodes
    checks = tuple(
        replace(check, value=None, verdict=Verdict.NOT_MEASURED) for check in first.checks
    )
    without = replace(found, nodes=(replace(first, checks=checks), other))
    words = [
        [each.change for each in changes(*pair)]
        for pair in ((without, found), (found, without), (without, without))
    ]
    assert words == [["new", "same"], ["not measured", "same"], ["not measured", "same"]]


def test_hidden_nodes_are_counted_by_verdict() -> None:
    found = qualified(8)
    verdicts = [Verdict.PASS] * 8 + [Verdict.FAIL] * 45
    nodes = [
        replace(found.nodes[0], node=f"n{number}", verdict=verdict)
        for number, verdict in enumerate(verdicts)
    ]
    text = on_console(print_qualification, replace(found, nodes=tuple(nodes)))
    assert "… and 5 that did not pass" in text
    assert "… and 8 that passed" in text


def test_csv_has_a_row_for_each_check() -> None:
    found = qualified(8, nodes={"n3": 0.8}, paths={("n1", "n2"): 0.5})
    rows = list(csv.DictReader(StringIO(render_csv(found).decode())))
    assert [(row["kind"], row["node"], row["target"]) for row in rows] == [
        *(("node", f"n{number}", "") for number in range(8)),
        ("path", "n1", "n2"),
    ]
    assert (rows[3]["verdict"], rows[3]["value"], rows[3]["median"]) == ("fail", "800.0", "1000.0")
    assert rows[3]["limit"] == ""


def test_json_is_read_again(tmp_path: Path) -> None:
    found = qualified(8, nodes={"n3": 0.8})
    assert read_qualification(folder_of(found, tmp_path / "q")) == found


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "expected the folder of a qualification"), (b"{}", "broken"), (b"[", "broken")],
)
def test_folder_without_a_qualification_is_refused(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / JSON_NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        read_qualification(tmp_path)


def test_baseline_excludes_failed_nodes() -> None:
    found = baseline_of(qualified(8, nodes={"n3": 0.8}))
    assert found == {
        "pairs_speed": dict.fromkeys([*(f"n{n}" for n in (0, 1, 2, 4, 5, 6, 7)), ""], USUAL)
    }


def test_baseline_excludes_degraded_values() -> None:
    found = qualified(8)
    first, *others = found.nodes
    checks = tuple(replace(each, verdict=Verdict.DEGRADED) for each in first.checks)
    values = baseline_of(replace(found, nodes=(replace(first, checks=checks), *others)))
    assert "n0" not in values["pairs_speed"]
    assert len(values["pairs_speed"]) == 8


def test_heat_map_colours_slow_pairs() -> None:
    found = qualified(8, paths={("n1", "n2"): 0.5})
    heat = heat_map(found, found.checks[0])
    assert heat is not None
    assert (heat.rows[1].cells[3].text, heat.rows[1].cells[3].heat) == ("500", "60")
    assert (heat.rows[2].cells[2].text, heat.rows[2].cells[2].heat) == ("1,000", "0")
    assert heat.rows[1].cells[2].text == ""


def test_compare_prints_nodes_and_fails_on_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = folder_of(qualified(), tmp_path / "base")
    new = folder_of(qualified(8, nodes={"n1": 0.8}), tmp_path / "new")
    assert main(["compare", str(base), str(new)]) == ExitCode.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if "n1" in line]
    assert lines[0].split()[:7] == ["n1", "pairs_speed", "1,000", "800", "-20.0%", "x/s", "worse"]
    assert main(["compare", str(base), str(new), "--fail-on", "worse"]) == ExitCode.WORSE
    assert main(["compare", str(base), str(base), "--fail-on", "worse"]) == ExitCode.OK
    wide = ["compare", str(base), str(new), "--fail-on", "worse", "--tolerance", "25%"]
    assert main(wide) == ExitCode.OK
    assert main(["compare", str(base), str(new), "--paired"]) == ExitCode.BAD_CONFIG


def test_webhook_has_changed_nodes_and_the_result(tmp_path: Path) -> None:
    base, new = qualified(9), qualified(8, nodes={"n1": 0.8})
    folders = [tmp_path / "base", tmp_path / "new"]
    for folder, found in zip(folders, (base, new), strict=True):
        folder.mkdir()
        result = ExperimentResult(name="rack", trials=(), qualification=found)
        (folder / experiment_file.NAME).write_bytes(experiment_file.encode(result))
    end = webhook.End("rack", None, "run", "done", 4, "", result, folders[1], "")
    posted = webhook.delivery(end, Artifacts(webhook=Webhook(compare_with=str(folders[0]))))
    assert posted.text.splitlines() == [
        "rack, done, exit code 4: 7 of 8 nodes qualify; failed: n1",
        f"compared with {folders[0]}: worse",
        "  n1: pairs_speed: 1,000 → 800 x/s (worse)",
        "  n8: pairs_speed: 1,000 → – x/s (gone)",
    ]
    assert [(row.node, row.new, row.word) for row in posted.rows] == [
        ("n1", 800.0, "worse"),
        ("n8", None, "gone"),
    ]
    assert (posted.judgement, posted.not_compared) == ("worse", None)


class Recorder:
    def __init__(self, gone: str = "") -> None:
        self.patches: dict[str, dict[str, Any]] = {}
        self._gone = gone

    async def patch(self, path: str, changes: dict[str, Any]) -> None:
        if path.endswith(f"/{self._gone}"):
            raise Refused(f'nodes "{self._gone}" not found', status=404, reason="NotFound")
        self.patches[path] = changes


async def test_labels_have_verdict_time_and_reason() -> None:
    found = qualified(8, nodes={"n3": 0.8})
    cluster, notes = Recorder(), list[str]()
    await label_nodes(cluster, found, say=notes.append)
    assert sorted(cluster.patches) == [f"/api/v1/nodes/n{number}" for number in range(8)]
    metadata = cluster.patches["/api/v1/nodes/n3"]["metadata"]
    assert metadata["labels"]["aiperf.dev/qualified"] == "fail"
    assert metadata["annotations"]["aiperf.dev/qualified-reason"].startswith("pairs_speed: 80% of")
    assert notes[3] == "n3: aiperf.dev/qualified=fail"


async def test_missing_node_leaves_no_other_unlabelled() -> None:
    cluster = Recorder(gone="n3")
    with pytest.raises(EnvironmentProblem, match='1 of 8 nodes not labelled: n3: nodes "n3" not'):
        await label_nodes(cluster, qualified(8), say=list[str]().append)
    assert len(cluster.patches) == 7


def test_label_of_good_node_removes_old_reason() -> None:
    changed = changes_of(qualified().nodes[0], "20261126T101530Z")["metadata"]
    assert changed == {
        "labels": {"aiperf.dev/qualified": "pass", "aiperf.dev/qualified-at": "20261126T101530Z"},
        "annotations": {"aiperf.dev/qualified-reason": None},
    }
