"""The report of several runs at once."""

from html import escape

from aiperf_svc.adapters.report import joint_words as words
from aiperf_svc.adapters.report import layout
from aiperf_svc.core.results.joint_result import Joint, JointRow, rows


def render(joint: Joint) -> bytes:
    """Render the page."""
    count = f"{len(joint.members)} {joint.kind}"
    notes = [words.how(joint), *joint.notes]
    parts = [
        layout.header(joint.name, [count, words.start(joint)]),
        _members(joint),
        "<h2>Each and the total</h2>",
        columns(joint, is_short=True),
        *(f'<p class="note">{escape(_sentence(note))}</p>' for note in notes if note),
        layout.details("All metrics", columns(joint, is_short=False)),
    ]
    return layout.document(joint.name, parts)


def _members(joint: Joint) -> str:
    lines = [
        f'<tr class="{member.verdict or "invalid"}">'
        f"<th>{layout.report_link(member.name, member.folder)}</th>"
        f'<td class="text">{escape(member.where)}</td>'
        f'<td class="wide">{escape(words.outcome(member))}</td></tr>'
        for member in joint.members
    ]
    head = '<th>Name</th><th class="text">Where</th><th class="text">Outcome</th>'
    return layout.table(head, lines)


def columns(joint: Joint, *, is_short: bool) -> str:
    """Render a column for each run or target and for the total."""
    head = "".join(f"<th>{escape(member.name)}</th>" for member in joint.members)
    lines = [_row(row) for row in rows(joint, is_short=is_short)]
    return layout.table(f"<th>Metric</th>{head}<th>total</th>", lines)


def _row(row: JointRow) -> str:
    return layout.row(row.name, row.unit, "".join(map(layout.cell, (*row.values, row.total))))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
