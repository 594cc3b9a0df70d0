"""The pages of the workload kinds list the keys and metrics of the code."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.cli.commands.workloads import describe
from aiperf_svc.cli.main import main
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.workloads.registry import OWN, tool
from tests.support.printed_tables import workload_tables

PAGES = Path(__file__).parents[3] / "docs" / "workloads"


@pytest.mark.parametrize("kind", OWN)
def test_page_of_kind_has_its_keys_and_metrics(
    kind: str, assert_printed: Callable[[Path, str, str], None]
) -> None:
    printed = f"as `aiperf-svc workloads {kind}` prints it"
    mark = f"<!-- Everything below is printed from the code of the kind, {printed}. -->\n"
    assert_printed(PAGES / f"{kind}.md", mark, workload_tables(kind))


def test_each_kind_has_exactly_one_page() -> None:
    assert {path.stem for path in PAGES.iterdir()} == set(OWN)


@pytest.mark.parametrize("kind", OWN)
def test_the_page_of_all_workloads_leads_to_each(kind: str) -> None:
    row = f"| [{kind}](workloads/{kind}.md) | {tool(kind).summary} |\n"
    assert row in (PAGES.parent / "workloads.md").read_text()


def test_each_key_has_its_default_and_text() -> None:
    keys = {key["key"]: key for key in describe(tool("fio"))["keys"]}
    assert keys["direct"] == {"key": "direct", "default": "true", "text": "Bypass the page cache."}
    assert keys["rw"]["text"].startswith("read, write, randread")
    assert "`64k` is refused" in keys["bs"]["text"]


@pytest.mark.parametrize("kind", OWN)
def test_each_key_has_a_text(kind: str) -> None:
    assert [key["key"] for key in describe(tool(kind))["keys"] if not key["text"]] == []


@pytest.mark.parametrize("kind", [kind for kind in OWN if kind != "command"])
def test_kind_names_its_tools_and_image(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", kind]) == ExitCode.OK
    output = capsys.readouterr().out
    assert all(f"needs {tool.name}" in output for tool in tool(kind).tools)
    assert f"runs in localhost/aiperf-svc-{kind}:" in output
