"""The JSON Schemas in docs/schemas compared with the models and with files."""

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import aiperf_svc
from aiperf_svc.adapters.exports.aiperf_exports import SLICES, render_slices_json
from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.result_files import VERDICT_SCHEMA, render_verdict
from aiperf_svc.adapters.storage.answers_file import write_answers
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.adapters.storage.provenance_file import write_provenance
from aiperf_svc.cli import main as cli
from aiperf_svc.cli.parsers.tools import SCHEMAS as NAMES
from aiperf_svc.cli.schemas import SCHEMAS, json_schema
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.core.quality.gate import Answer
from aiperf_svc.core.results.provenance import provenance_of
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.slices import Slice
from aiperf_svc.core.verdict.check_result import Severity, Verdict
from tests.support import fake_run
from tests.support.fake_nodes import FakeNodes
from tests.support.fake_trials import outcome, sweep

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "schemas"
STACKS = sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))
RESULTS = {
    *("profile_export_aiperf.json", "results.json", "experiment.json", "joint.json"),
    *("verdict.json", "manifest.json"),
}
"""Result files in the stored folders."""


@cache
def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(json_schema(name))


def problems(name: str, data: Any) -> list[str]:
    return [each.message for each in validator(name).iter_errors(data)]


@pytest.mark.parametrize("name", NAMES)
def test_published_schema_matches_the_models(
    name: str, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["schema", name]) == 0
    printed = capsys.readouterr().out
    path = PUBLISHED / f"{name}.json"
    if pytestconfig.getoption("--write-samples"):
        path.write_text(printed)
    assert printed == path.read_text(), "run: pytest --write-samples tests/unit/cli/test_schemas.py"


def test_every_schema_is_valid_and_has_this_version() -> None:
    assert set(NAMES) == set(SCHEMAS) == {path.stem for path in PUBLISHED.glob("*.json")}
    for name in NAMES:
        jsonschema.Draft202012Validator.check_schema(json_schema(name))
        assert json_schema(name)["$id"] == f"urn:aiperf-svc:{aiperf_svc.__version__}:{name}"


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.stem)
def test_stack_file_fits_and_names_its_schema(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    assert problems("stack", data) == []
    assert problems("config", data["config"]["aiperf:benchmark"]) == []
    line = path.read_text().partition("\n")[0]
    assert line == "# yaml-language-server: $schema=../docs/schemas/stack.json"


def test_misspelt_key_does_not_fit() -> None:
    data = yaml.safe_load(STACKS[0].read_text())
    data["config"]["aiperf:benchmark"]["laod"] = {}
    assert "'laod' was unexpected" in problems("stack", data)[0]
    workload = {"workload": {"kind": "fio", "blocksize": "4k"}}
    assert problems("config", workload)


def test_key_has_its_description_and_default() -> None:
    load = json_schema("config")["$defs"]["Load"]["properties"]
    assert load["grace_period"]["description"].endswith("Default: 30s")
    ramp = json_schema("config")["$defs"]["Load"]["properties"]["ramp"]
    assert ramp["type"] == ["number", "string"]


def test_stored_results_fit() -> None:
    checked = set()
    with tarfile.open(ROOT / "tests" / "data" / "results.tar.xz") as archive:
        for member in archive.getmembers():
            path, file = Path(member.name), archive.extractfile(member)
            if path.name in RESULTS and file is not None:
                assert problems(path.stem, json.load(file)) == [], member.name
                checked.add(path.name)
    assert checked == RESULTS


def test_written_files_fit(tmp_path: Path) -> None:
    nodes = FakeNodes(4, nodes={"n3": 0.1})
    found, _ = nodes.qualify(nodes.rules())
    assert problems("qualification", json.loads(json_file(found))) == []
    write_provenance(tmp_path, provenance_of({"cpus": "2"}, (), (), begin_ns=0, end_ns=1))
    assert problems("provenance", json.loads((tmp_path / "provenance.json").read_text())) == []
    answers = [Answer(question=0, repeat=0), Answer(question=1, repeat=0, is_right=True)]
    write_answers(tmp_path, answers)
    for line in (tmp_path / "quality.jsonl").read_text().splitlines():
        assert problems("quality", json.loads(line)) == []
    written = json.loads(render_verdict(Verdict(Severity.VALID, "", ()), ()))
    assert (problems("verdict", written), written["schema_version"]) == ([], VERDICT_SCHEMA)


def test_slice_fits_with_any_metric() -> None:
    metrics = {"request_count": MetricStats(unit="requests", avg=1.0)}
    each = Slice(index=2, start_wall_ns=1, end_wall_ns=2, is_complete=True, metrics=metrics)
    written = json.loads(render_slices_json([each], fake_run.config()))
    assert problems(SLICES, written) == []
    assert written["timeslices"][0]["request_count"] == {"unit": "requests", "avg": 1.0}
    written["timeslices"][0]["request_count"] = 1
    assert problems(SLICES, written)


def test_aggregates_and_sweep_fit(tmp_path: Path) -> None:
    failed = outcome(7, {"load.concurrency": 4}, state="failed", reason="refused")
    twice = sweep({1: (10.0, 5.0), 2: (20.0, 6.0), 8: (19.0, 7.0)}, repetitions=2)
    write_experiment(tmp_path, fake_run.config(), summarise([*twice, failed]))
    found = sorted(tmp_path.rglob("profile_export_aiperf_*.json"))
    assert [path.stem.rpartition("_")[2] for path in found] == [*(["aggregate"] * 3), "sweep"]
    for path in found:
        written = json.loads(path.read_text())
        assert problems(path.stem, written) == []
        del written["metadata"]
        assert problems(path.stem, written) == ["'metadata' is a required property"]


def test_joint_and_verdict_refuse_a_missing_key() -> None:
    joint = {"kind": "targets", "name": "n", "exit_code": 0, "verdict": None, "members": []}
    assert problems("joint", joint) == []
    del joint["members"]
    assert problems("joint", joint)
    verdict: dict[str, Any] = {"verdict": "valid", "cause": "", "reasons": [], "checks": []}
    assert problems("verdict", verdict) == ["'slo' is a required property"]
