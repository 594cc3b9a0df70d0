"""`view` serves stored results to a real browser and denies access without its token."""

import asyncio
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from aiperf_svc.adapters.exports.result_files import INFERENCE_FILE
from aiperf_svc.adapters.storage.answers_file import write_answers
from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.adapters.viewer import server
from aiperf_svc.adapters.viewer.index import Index
from aiperf_svc.adapters.viewer.server import Viewer, list_page
from aiperf_svc.cli.commands import finished_runs
from aiperf_svc.core.quality import gate
from aiperf_svc.core.quality.questions import Grader, Question
from aiperf_svc.core.results.summarise import summarise
from tests.support import fake_run
from tests.support.browser import Frame, browsing, opened

USE = """<script>
addEventListener("load", () => {
  const shown = () => [...document.querySelectorAll("tbody tr")].filter(row => !row.hidden)
    .map(row => row.querySelector("input").value).sort();
  const enabled = () => [...document.querySelectorAll("button")].map(button => !button.disabled);
  const type = (id, value, event) => {
    const field = document.getElementById(id);
    field.value = value;
    field.dispatchEvent(new Event(event));
  };
  const choose = (...ids) => {
    for (const box of document.querySelectorAll("tbody input")) {
      box.checked = ids.includes(box.value);
      box.dispatchEvent(new Event("change"));
    }
    return enabled();
  };
  const all = shown();
  type("search", "SWEEP", "input");
  const searched = shown();
  type("search", "", "input");
  type("kind", "fio", "change");
  const filtered = shown();
  type("kind", "", "change");
  tell({
    all, searched, filtered, none: choose(), one: choose("inference"),
    two: choose("inference", "broken"), runs: choose("inference", "fio"),
    experiments: choose("experiment", "search"),
    width: document.documentElement.scrollWidth, window: innerWidth,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  });
});
</script>"""


@pytest.fixture(scope="module")
def stored(stored: Path) -> Path:
    folder = stored
    (folder / "broken").mkdir()
    (folder / "broken" / "results.json").write_text('{"schema_version": "<b>9</b>"}')
    (folder / "empty").mkdir()
    (folder / "empty" / os.fsdecode(b"m\xfcller.txt")).write_text("flour")
    again = Path(shutil.copytree(folder / "inference", folder / "again")) / INFERENCE_FILE
    content = msgspec.json.decode(again.read_bytes())
    content["benchmark_id"] += "-again"
    again.write_bytes(msgspec.json.encode(content))
    (folder / "secret").symlink_to("/etc")
    return folder


@pytest.fixture(scope="module")
def address(stored: Path) -> Iterator[str]:
    """Run a viewer and yield its address. Nothing outlives it."""
    before = snapshot(stored)
    command = [sys.executable, "-m", "aiperf_svc", "view", str(stored), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert snapshot(stored) == before


def snapshot(folder: Path) -> dict[str, int]:
    """Return all files and their modification times."""
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def get(url: str) -> tuple[int, str, dict[str, str]]:
    """Return status, text and headers of a page."""
    try:
        with urllib.request.urlopen(url, timeout=30.0) as response:
            return response.status, response.read().decode(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_list_is_searched_filtered_and_chosen(stored: Path, tmp_path: Path) -> None:
    index = Index(stored)
    page = list_page(index.root, index.scan()).decode()
    (found,) = opened(tmp_path, {"list": Frame(page + USE, 1280)}).values()
    assert {"broken", "experiment", "fio", "inference", "search", "targets"} < set(found["all"])
    assert not {"empty", "secret", "."} & set(found["all"])
    assert found["searched"] == ["experiment"]
    assert found["filtered"] == ["fio"]
    compare, curves, history = True, True, True
    assert found["none"] == [False, False, False]
    assert found["one"] == [False, False, False]
    assert found["runs"] == [compare, False, history]
    assert found["experiments"] == [compare, curves, False]
    assert found["width"] <= found["window"]
    assert found["loaded"] == []


CHOOSE = """(ids, button) => {
  for (const box of document.querySelectorAll("tbody input")) {
    if (box.checked !== ids.includes(box.value)) box.click();
  }
  document.querySelector(`button[formaction=${button}]`).click();
}"""
FILTER = """
document.getElementById("kind").value = "fio";
document.getElementById("kind").dispatchEvent(new Event("change"));
[...document.querySelectorAll("tbody tr")].filter(row => !row.hidden).length
"""
TEXT = "document.body.textContent"


async def test_served_pages_are_filtered_and_clicked(address: str, tmp_path: Path) -> None:
    async with browsing(tmp_path / "profile") as tab:
        await tab.load(address)
        assert await tab.value(FILTER) == 1
        await tab.load(address)
        await tab.click(f"({CHOOSE})(['again', 'inference'], 'compare')")
        assert "Differences in config" in await tab.value(TEXT)
        await tab.load(address)
        await tab.click(f"({CHOOSE})(['experiment'], 'curves')")
        assert "tokens/s per user" in await tab.value("document.documentElement.outerHTML")
        assert await tab.value("document.querySelectorAll('canvas, svg').length") > 0
        await tab.load(address)
        await tab.click("document.querySelector('a[href=\"files/inference/\"]').click()")
        await tab.click("document.querySelector('a[href=\"config.yaml\"]').click()")
        assert "endpoint:" in await tab.value(TEXT)
        assert tab.errors == []


def test_unreadable_run_has_a_reason(address: str) -> None:
    _, text, _ = get(address)
    assert "its schema is" in text
    assert "<b>9</b>" not in text


def test_chosen_runs_are_compared_and_plotted(address: str) -> None:
    code, text, _ = get(f"{address}compare?run=again&run=inference")
    assert (code, "Differences in config" in text) == (200, True)
    code, text, _ = get(f"{address}curves?run=experiment")
    assert (code, "tokens/s per user" in text) == (200, True)
    code, text, _ = get(f"{address}history?run=inference")
    assert (code, "Changes" in text) == (200, True)
    code, text, _ = get(f"{address}compare?run=inference&run=fio")
    assert (code, "Not possible" in text) == (400, True)


def test_only_the_token_opens_pages(address: str) -> None:
    root = address.rsplit("/", 2)[0]
    assert [get(f"{root}{path}")[0] for path in ("/", "/x/", "/x/files/fio/")] == [403] * 3
    assert root.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "secret/passwd",
        "nothing",
        quote("/etc/passwd"),
    ],
)
def test_files_outside_the_folder_stay_unread(address: str, path: str) -> None:
    code, text, _ = get(f"{address}files/{path}")
    assert (code, "root:" in text) == (404, False)


def test_files_cannot_act_as_the_viewer(address: str) -> None:
    code, text, headers = get(f"{address}files/inference/config.yaml")
    assert (code, "endpoint:" in text) == (200, True)
    assert "sandbox" in headers["Content-Security-Policy"]
    assert "allow-same-origin" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "secret" not in get(f"{address}files/")[1]


def test_file_whose_name_is_no_text_opens(address: str) -> None:
    code, text, _ = get(f"{address}files/empty/")
    assert (code, 'href="m%FCller.txt"' in text) == (200, True)
    assert get(f"{address}files/empty/m%FCller.txt")[:2] == (200, "flour")


def test_folder_whose_name_is_no_text_is_listed(stored: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xfcller"))
    folder.mkdir()
    shutil.copy(stored / "fio" / "results.json", folder)
    index = Index(tmp_path)
    assert b"files/m%FCller/" in list_page(index.root, index.scan())


def test_best_value_names_its_statistic(stored: Path, tmp_path: Path) -> None:
    content = msgspec.json.decode((stored / "experiment" / "experiment.json").read_bytes())
    tag = "time_to_first_token_p99"
    content["best"] = [each for each in content["best"] if each["metric"] == tag]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "experiment.json").write_bytes(msgspec.json.encode(content))
    (entry,) = Index(tmp_path).scan()
    assert entry.numbers[1].startswith("best Time to First Token p99 12.29 ms at ")


def test_changed_results_are_read_again(stored: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file = run / "results.json"
    content = (stored / "fio" / "results.json").read_text()
    file.write_text(content)
    index = Index(tmp_path)
    assert [each.name for each in index.scan()] == ["disk"]
    file.write_text(content.replace('"name": "disk"', '"name": "other"', 1))
    os.utime(file, ns=(1, 1))
    assert [each.name for each in index.scan()] == ["other"]
    file.unlink()
    assert index.scan() == []


@pytest.mark.parametrize(
    ("name", "when_wall_ns"),
    [("x-19700101T000002Z", 2 * 10**9), ("x-20269999T000000Z", 7), ("x", 7)],
)
def test_results_have_the_time_of_their_folder(
    tmp_path: Path, name: str, when_wall_ns: int
) -> None:
    file = tmp_path / name / "joint.json"
    file.parent.mkdir()
    file.write_text('{"kind": "targets", "name": "x"}')
    os.utime(file, ns=(7, 7))
    assert [each.when_wall_ns for each in Index(tmp_path).scan()] == [when_wall_ns]


def test_search_over_targets_shows_its_result(tmp_path: Path) -> None:
    search = '"search": {"result": "holds 2 users"}'
    (tmp_path / "joint.json").write_text(f'{{"kind": "targets", "name": "x", {search}}}')
    (entry,) = Index(tmp_path).scan()
    assert entry.numbers == ("holds 2 users",)


def test_browser_gets_the_address_by_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []

    def open_page(url: str) -> bool:
        pages.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    monkeypatch.setenv("HOME", str(tmp_path))
    with finished_runs._folder_of_browsers() as private:
        # A browser from a snap cannot read hidden folders.
        assert Path(private).parent == tmp_path
        assert not Path(private).name.startswith(".")
        assert stat.S_IMODE(Path(private).stat().st_mode) == 0o700
    assert not [*tmp_path.iterdir()]
    finished_runs._open("http://127.0.0.1:1/token/", tmp_path)
    assert pages == [(tmp_path / "open.html").as_uri()]
    assert "/token/" in (tmp_path / "open.html").read_text()
    assert stat.S_IMODE((tmp_path / "open.html").stat().st_mode) == 0o600


async def visited(folder: Path, page: str = "") -> tuple[int, str]:
    """Return status and text of a page that a browser requests while the command opens it."""
    found: list[tuple[int, str]] = []

    def open_browser(url: str) -> None:
        found.append(get(f"{url}{page}")[:2])
        serving.get_loop().call_soon_threadsafe(serving.cancel)

    serving = asyncio.create_task(Viewer(folder, "token").serve(0, open_browser))
    with pytest.raises(asyncio.CancelledError):
        await serving
    return found[0]


async def test_page_is_served_while_a_browser_opens(tmp_path: Path) -> None:
    code, text = await visited(tmp_path)
    assert (code, "There are no results" in text) == (200, True)


async def test_unreadable_folder_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_title: str, _folder: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(server, "files_page", refuse)
    code, text = await visited(tmp_path, "files/")
    assert (code, "Permission denied" in text) == (404, True)


def test_missed_quality_gate_is_a_missed_slo(tmp_path: Path) -> None:
    rows = fake_run.closed_loop(requests=500)
    columns = fake_run.columns_of(rows)
    questions = [Question(prompt="?", grader=Grader.EXACT, expected="yes")]
    answers = gate.graded(questions, [gate.Answer(question=0, repeat=0, text="no")])
    poor = gate.score(["exact"], answers, file="q", sha256="0", concurrency=1, min_score=0.9)
    write_answers(tmp_path, answers)
    write_all(tmp_path, summarise(columns, None, fake_run.context(rows, quality=poor)), columns)
    (entry,) = Index(tmp_path).scan()
    assert (entry.kind, entry.slo) == ("inference", "missed")
