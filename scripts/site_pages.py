"""Collects the pages of the documentation site in a folder: docs/, the pages in the repository's
root, and files outside docs/ that pages link to. Usage: site_pages.py FOLDER

The site generator then needs no knowledge of this repository.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages in the repository's root, and their names in the site."""
FILLED = {"Other tools": "workloads", "Decisions": "decisions"}
"""Sections of the navigation that list all pages of a folder."""
OUTSIDE = "repository"
"""Folder of the site for linked files outside docs/."""
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")


def main(folder: Path) -> None:
    """Write the pages and the config."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    for name, title in PAGES.items():
        text = (ROOT / name).read_text("utf-8")
        (pages / title).write_text(_LINK.sub(_from_root, text), "utf-8")
    for page in pages.rglob("*.md"):
        page.write_text(_with_copies(page, pages), "utf-8")
    shutil.copyfile(ROOT / "scripts" / "site.css", pages / "site.css")
    config = yaml.safe_load((ROOT / "scripts" / "mkdocs.yml").read_text("utf-8"))
    _fill(config["nav"], pages)
    # URL of a released site, which links from each version to the latest need.
    if url := os.environ.get("SITE_URL"):
        config["site_url"] = url
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")


def _from_root(match: re.Match[str]) -> str:
    """Rewrite a link of a page in the root for a page in docs/."""
    link = match[1]
    if link in PAGES:
        return PAGES[link]
    if link == "docs/decisions":
        return "decisions/" + min(each.name for each in (ROOT / "docs/decisions").glob("*.md"))
    inside = link.removeprefix("docs/")
    return inside if inside != link else f"../{link}"


def _with_copies(page: Path, pages: Path) -> str:
    """Return the text of a page with links out of docs/ replaced by links to copies in the site."""
    place = page.relative_to(pages).parent

    def replaced(match: re.Match[str]) -> str:
        found = (ROOT / "docs" / place / match[1]).resolve()
        if found.is_relative_to(ROOT / "docs") or not found.is_file():
            return match[1]
        name = found.relative_to(ROOT).as_posix()
        if name in PAGES:
            return "../" * len(place.parts) + PAGES[name]
        copy = pages / OUTSIDE / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, copy)
        return "../" * len(place.parts) + f"{OUTSIDE}/{name}"

    return _LINK.sub(replaced, page.read_text("utf-8"))


def _fill(nav: list[Any], pages: Path) -> None:
    for item in nav:
        for title, below in item.items() if isinstance(item, dict) else ():
            if title in FILLED:
                folder = pages / FILLED[title]
                below += [f"{folder.name}/{each.name}" for each in sorted(folder.glob("*.md"))]
            elif isinstance(below, list):
                _fill(below, pages)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
