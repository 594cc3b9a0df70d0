"""The table "Add something" of CONTRIBUTING.md lists every product file that refers to an
example."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aiperf_svc"
ROWS = dict(
    re.findall(
        r"^\| (an? [^|]+?) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
)
EXAMPLES = (
    ("a metric", "decode_duration"),
    ("a metric", "osl_mismatch_count"),
    ("a metric", "input_token_throughput"),
    ("a metric", "cancelled_request_count"),
    ("a metric to the tables", "spec_decode_overall_draft_acceptance_rate"),
    ("a check of the verdict", "blank_deltas"),
    ("a check of the verdict", "file_descriptors"),
    ("a check of the verdict", "held_back"),
    ("a check of the verdict", "requested_tolerance"),
    ("a kind of server or a GPU exporter to telemetry", "sglang"),
    ("an endpoint", "huggingface_generate"),
    ("a format of traces", "burst_gpt_trace"),
    ("a kind of workload", "openfoam"),
    ("a fault of the mock server", "one_byte_writes"),
)


@pytest.mark.parametrize(("row", "name"), EXAMPLES)
def test_row_names_every_file_to_touch(row: str, name: str) -> None:
    kinds = re.sub(r"<\w+>", name, ROWS[row])
    listed = re.findall(r"`([\w./]+)`", kinds)
    word = re.compile(rf"\b{name}\b")
    touched = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.stem != name and word.search(path.read_text())
    }
    assert touched
    assert {path for path in touched if not path.startswith(tuple(listed))} == set()
