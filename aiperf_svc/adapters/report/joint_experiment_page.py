"""The report of an experiment that several runs went through at the same time."""

from html import escape

from aiperf_svc.adapters.report import experiment_page, joint_words, layout
from aiperf_svc.core.experiments.joint_trials import JointExperiment


def render(joint: JointExperiment) -> bytes:
    """Render the page: the total in full, and the combinations of each run."""
    count = f"{len(joint.members)} {joint.kind}"
    parts = [
        layout.header(joint.name, [count, joint_words.starts(joint)]),
        _members(joint),
    ]
    if joint.has_total:
        how = ". ".join((joint_words.HOW, *joint.notes))
        parts += ["<h2>Total</h2>", f'<p class="note">{escape(how)}.</p>']
        parts += experiment_page.sections(joint.total)
    for each in joint.members:
        if each.summary.rows:
            parts += [f"<h2>{escape(each.name)}</h2>", experiment_page.combinations(each.summary)]
    return layout.document(joint.name, parts)


def _members(joint: JointExperiment) -> str:
    lines = [
        f"<tr><th>{layout.report_link(each.name, each.folder)}</th>"
        f'<td class="text">{escape(each.where)}</td>'
        f'<td class="wide">{escape(joint_words.end(each))}</td></tr>'
        for each in joint.members
    ]
    head = '<th>Name</th><th class="text">Where</th><th class="text">Outcome</th>'
    return layout.table(head, lines)
