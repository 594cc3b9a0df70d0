"""`joint.json` and `joint.csv`: several runs at once, with a column for each and for the total."""

import csv
from io import StringIO

import msgspec

from aiperf_svc.core.results.joint_result import Joint, rows
from aiperf_svc.domain.foreign_text import csv_cell


def render_json(joint: Joint) -> bytes:
    """Render joint.json."""
    return msgspec.json.format(msgspec.json.encode(joint), indent=1) + b"\n"


def render_csv(joint: Joint) -> bytes:
    """Render joint.csv: a row for each statistic."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "unit", *(csv_cell(m.name) for m in joint.members), "total"])
    for row in rows(joint, is_short=False):
        cells = ("" if value is None else value for value in (*row.values, row.total))
        writer.writerow([csv_cell(row.name), csv_cell(row.unit), *cells])
    return text.getvalue().encode()
