"""Documentation pages: links have targets, and decisions are numbered without gaps."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc import __version__
from benchmarks.performance_page import page as performance_page
from scripts import site_pages

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_lead_to_files_and_headings() -> None:
    for page in PAGES:
        for link in LINK.findall(page.read_text()):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in _anchors(target), f"{page}: {link}"


def test_site_has_every_page_in_its_navigation(tmp_path: Path) -> None:
    site_pages.main(tmp_path / "site")
    pages = tmp_path / "site" / "pages"
    named: list[str] = []

    def walk(items: list[Any]) -> None:
        for item in items:
            (below,) = item.values() if isinstance(item, dict) else (item,)
            walk(below) if isinstance(below, list) else named.append(below)

    walk(yaml.safe_load((tmp_path / "site" / "mkdocs.yml").read_text())["nav"])
    found = [page.relative_to(pages).as_posix() for page in pages.rglob("*.md")]
    found = [each for each in found if not each.startswith(site_pages.OUTSIDE)]
    assert sorted(named) == sorted(found), "scripts/mkdocs.yml has the navigation"
    for page in (pages / each for each in found):
        for link in LINK.findall(page.read_text()):
            path = page.parent / (link.partition("#")[0] or page.name)
            assert path.is_file(), f"{page.name}: {link}"
            assert path.resolve().is_relative_to(pages), f"{page.name}: {link}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))
    for number, page in zip(numbers, DECISIONS, strict=True):
        assert page.read_text().startswith(f"# {number}. "), page.name


def test_decision_names_the_choice_and_its_alternatives() -> None:
    for page in DECISIONS:
        for part in ("Question", "Choice", "Why", "Not done"):
            assert f"**{part}.**" in page.read_text(), f"{page}: {part}"


def test_citation_names_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_named_files_exist(name: str) -> None:
    named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|c|md))`", (ROOT / name).read_text())
    assert named
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "aiperf_svc" / path).exists(), path


def test_performance_page_has_the_tables_of_its_results() -> None:
    current = (ROOT / "docs" / "performance.md").read_text()
    (source,) = set(re.findall(r"[\d-]+\.json", current))
    results = json.loads((ROOT / "benchmarks" / "results" / source).read_text())
    assert performance_page(current, results, source=source) == current
