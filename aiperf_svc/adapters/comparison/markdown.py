"""A comparison as Markdown, for a comment on a pull request."""

from collections.abc import Iterable, Sequence

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.core.compare.comparison import Comparison
from aiperf_svc.core.compare.groups import Comparisons


def render(comparison: Comparison) -> str:
    sides = (f"- {name}: {_escaped(text)}" for name, text in wording.sides(comparison))
    parts = [f"**{wording.conclusion(comparison)}**", "\n".join(sides)]
    if comparison.differences:
        parts.append(
            _table(("differs", "base", "new"), map(wording.differing, comparison.differences))
        )
    else:
        parts.append(wording.same_config(comparison))
    rows = ((wording.name(row), *wording.cells(row)) for row in comparison.rows)
    parts.append(_table(("", *wording.HEADS), rows))
    if comparison.notes:
        parts.append("\n".join(f"- {_escaped(note)}" for note in comparison.notes))
    if comparison.shifts:
        stats, shifts = wording.shifts(comparison, missing="")
        parts.append(_table(("percentiles moved", *stats), shifts))
    return "\n\n".join(parts)


def render_groups(found: Comparisons) -> str:
    if len(found.groups) == 1 and not found.skipped:
        return render(found.groups[0])
    parts = [f"**{wording.conclusion(found)}**"]
    parts += [f"### {_escaped(each.name)}\n\n{render(each)}" for each in found.groups]
    parts += [f"- {_escaped(text)}" for text in wording.skipped(found)]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        head,
        ["---", *["---:"] * (len(head) - 1)],
        *([_escaped(c) for c in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Escape characters that would end a table cell or start Markdown markup."""
    for character in "\\|<`*_[~":
        text = text.replace(character, f"\\{character}")
    return text
