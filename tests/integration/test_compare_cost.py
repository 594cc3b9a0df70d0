"""Memory of a comparison of large runs."""

from pathlib import Path

from benchmarks.compare.__main__ import make_run, measure


def peak_mib(folder: Path, requests: int) -> float:
    """Return the peak memory of a comparison of two single runs."""
    sides = [folder / name for name in ("base", "new")]
    folder.mkdir()
    for seed, side in enumerate(sides):
        make_run(side, requests, seed=seed)
    return measure(["compare", *map(str, sides), "--html", str(folder / "page.html")])[1]


def test_comparison_costs_under_half_a_kilobyte_per_request(tmp_path: Path) -> None:
    few, many = 20_000, 80_000
    grown = peak_mib(tmp_path / "many", many) - peak_mib(tmp_path / "few", few)
    assert grown * 2**20 < 512 * (many - few)
