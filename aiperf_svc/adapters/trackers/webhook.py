"""Posts the result of a finished command to a URL as JSON: state, verdict, exit code, key figures
and the comparison with the previous run. The key `text` has a summary in a few lines for chat
tools.

The value of the secret header comes from the environment, and so does the URL if it is a secret. No
message repeats either of them: messages contain only the host of the URL.
"""

import http.client
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from aiperf_svc.adapters.comparison import wording
from aiperf_svc.adapters.comparison.comparing import folder_groups, read_group
from aiperf_svc.adapters.exports.experiment_file import is_experiment, read_experiment_file
from aiperf_svc.adapters.exports.result_files import Results
from aiperf_svc.adapters.storage.bucket_runs import (
    SCHEME,
    BucketRun,
    bucket_of,
    copy_runs,
    list_runs,
)
from aiperf_svc.config.artifacts import Artifacts, Webhook
from aiperf_svc.core.compare.comparison import ComparisonRow, Word
from aiperf_svc.core.compare.groups import Comparisons, compare_groups
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.qualify.changes import NodeChange, changes
from aiperf_svc.core.qualify.result import Qualification
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import AiperfError, ConfigError, EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.number_text import number, readable_unit

URL_VARIABLE: Final = "AIPERF_WEBHOOK_URL"
SECRET_VARIABLE: Final = "AIPERF_WEBHOOK_SECRET"
SCHEMA: Final = "webhook/1"
ATTEMPTS: Final = 3
TIMEOUT_S: Final = 10.0
"""Timeout of one attempt."""
PAUSE_S: Final = 2.0
"""Interval between attempts."""
_URL: Final = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[\w-]{1,63}(\.[\w-]{1,63})*\.?)(:\d{1,5})?([/?][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
"""Excludes a user and password, which the library's error message would quote, and host labels that
are empty or too long, for which it raises no OSError."""


class End(NamedTuple):
    name: str
    """Name of the benchmark."""
    stack: str | None
    run_id: str
    state: str
    exit_code: int
    reason: str
    results: Results | None
    folder: Path | None
    uploaded_to: str
    member: str = ""
    """Target or cluster, if several were measured together."""


class DeliveredRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    metric: str
    base: float | None
    new: float | None
    delta: float | None
    word: str
    node: str = ""
    """Name of the check, in a qualification."""


class Compared(NamedTuple):
    """The posted part of a comparison."""

    judgement: str
    rows: tuple[DeliveredRow, ...]
    lines: tuple[str, ...]
    """The rows as text."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a request. Keys are added, never removed."""

    schema_version: str = SCHEMA
    text: str
    """A summary in a few lines."""
    name: str
    """Name of the benchmark."""
    stack: str | None
    run_id: str
    state: str
    verdict: str | None
    exit_code: int
    reason: str
    uploaded_to: str | None
    """URL of the results in a bucket."""
    figures: dict[str, float]
    """Key figures: `time_to_first_token.p99`."""
    base: str | None
    """The run to which it is compared."""
    judgement: str | None
    """worse, not judged, or not worse; None without a comparison."""
    rows: tuple[DeliveredRow, ...]
    """Relevant rows of the comparison; for two qualifications, the changed ones."""
    not_compared: str | None
    """Reason why there is no comparison."""


def _url_of(webhook: Webhook, environ: Mapping[str, str]) -> str:
    return (webhook.url or environ.get(URL_VARIABLE, "")).strip()


def problem(webhook: Webhook, environ: Mapping[str, str]) -> str:
    """Return the reason why the webhook cannot be called; empty if it can."""
    url = _url_of(webhook, environ)
    if not url:
        return f"no url, and {URL_VARIABLE} is not set in the environment"
    if not url.isascii() or not _URL.fullmatch(url):
        name = "url" if webhook.url else URL_VARIABLE
        return f"{name}: expected http://HOST/PATH or https://HOST/PATH, of ASCII characters"
    secret = environ.get(SECRET_VARIABLE, "")
    if not secret.isascii() or not secret.isprintable():
        return f"{SECRET_VARIABLE}: a header takes one line of printable ASCII characters"
    return ""


def delivery(end: End, artifacts: Artifacts) -> Delivery:
    """Return the content to post about a finished command. Does not raise: a failed comparison
    becomes part of the content."""
    result, found, base, why, reason = end.results, None, None, None, end.reason
    if not reason and isinstance(result, ExperimentResult) and result.qualification is not None:
        reason = result.qualification.result
    if end.folder is None or result is None:
        why = "nothing was measured"
    else:
        try:
            base, found = compared_with_before(end.folder, end, artifacts)
        except AiperfError as error:
            why = one_line(str(error))
    verdict = str(result.verdict) if result is not None and result.verdict is not None else None
    parts = [end.stack or end.name, end.state, *([f"verdict {verdict}"] if verdict else [])]
    lines = [
        f"{', '.join(parts)}, exit code {end.exit_code}" + (f": {reason}" if reason else ""),
        *([f"compared with {base}: {found.judgement}", *found.lines] if found is not None else []),
        *([f"not compared: {why}"] if why else []),
        *([f"results: {end.uploaded_to}"] if end.uploaded_to else []),
    ]
    return Delivery(
        text="\n".join(lines),
        name=end.name,
        stack=end.stack,
        run_id=end.run_id,
        state=end.state,
        verdict=verdict,
        exit_code=end.exit_code,
        reason=end.reason,
        uploaded_to=end.uploaded_to or None,
        figures=_figures(result),
        base=base,
        judgement=None if found is None else found.judgement,
        rows=() if found is None else found.rows,
        not_compared=why,
    )


def _judgement(found: Comparisons) -> str:
    if found.is_worse:
        return str(Word.WORSE)
    return f"not {Word.WORSE}" if found.is_judged else "not judged"


def _line(row: ComparisonRow) -> str:
    base, new, delta, *_, word = wording.cells(row)
    return f"  {wording.name(row)}: {base} → {new} ({delta}, {word})"


def _figures(results: Results | None) -> dict[str, float]:
    """Return the headline figures of a run; empty for an experiment, whose trials have them."""
    if not isinstance(results, RunResult):
        return {}
    found = {
        (f"{tag}.{stat}" if not results.stats[tag].is_single else tag): results.stats[tag].stat(
            stat
        )
        for tag, stat in results.headline
        if tag in results.stats
    }
    return {key: value for key, value in found.items() if value is not None}


def deliver(content: Delivery, webhook: Webhook) -> str:
    """Post the content and return the host that received it. Raises EnvironmentProblem."""
    if missing := problem(webhook, os.environ):
        raise EnvironmentProblem(missing)
    url = _url_of(webhook, os.environ)
    host = urlsplit(url).netloc
    headers = {"Content-Type": "application/json", "User-Agent": "aiperf-svc"}
    if secret := os.environ.get(SECRET_VARIABLE):
        headers[webhook.header] = secret
    request = Request(url, msgspec.json.encode(content), headers, method="POST")
    opener = build_opener(_NoRedirect)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with opener.open(request, timeout=TIMEOUT_S):
                return host
        except HTTPError as error:
            why = f"responds {error.code} {one_line(error.reason)}"
            error.close()
            if error.code < 500 and error.code != http.client.TOO_MANY_REQUESTS:
                break
        except (URLError, OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) else error
            why = one_line(str(cause)) or type(cause).__name__
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_S)
    raise EnvironmentProblem(f"{host} {why}" if why.startswith("responds") else f"{host}: {why}")


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirects: the secret header is meant for one host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def compared_with_before(folder: Path, end: End, artifacts: Artifacts) -> tuple[str, Compared]:
    """Compare the results in a folder with the run in `artifacts.webhook.compare_with`, else with
    the last run of the same benchmark and the same target or cluster in the bucket of
    `artifacts.s3`. Return the base too. Raises AiperfError."""
    base = artifacts.webhook.compare_with if artifacts.webhook is not None else None
    if base is not None and not base.startswith(SCHEME):
        return base, compare_folders(Path(base), folder)
    if base is not None:
        s3 = bucket_of(base)
        found = [each for each in list_runs(s3) if each.is_whole]
        if len(found) != 1:
            raise ConfigError(
                f"artifacts.webhook.compare_with: {base} has {len(found)} runs, not 1"
            )
        chosen: BucketRun | None = found[0]
    elif artifacts.s3 is not None:
        url = "/".join(filter(None, (artifacts.s3.url.rstrip("/"), end.member)))
        s3 = artifacts.s3.model_copy(update={"url": url})
        own = (each for each in list_runs(s3) if each.parent == url)
        chosen = last_before(own, end.name, end.uploaded_to)
    else:
        raise ConfigError(
            "artifacts.webhook.compare_with names no run, and artifacts.s3 no bucket with runs"
        )
    if chosen is None:
        raise ConfigError(f"{s3.url} has no earlier run of {end.name}")
    with TemporaryDirectory(prefix="aiperf-runs-") as scratch:
        (copied,) = copy_runs(s3, [chosen], Path(scratch))
        return chosen.url, compare_folders(copied, folder)


def last_before(runs: Iterable[BucketRun], name: str, uploaded_to: str) -> BucketRun | None:
    """Return the last complete run of a benchmark in a bucket before the one at `uploaded_to`.
    Names of runs sort by time."""
    own = [
        each
        for each in runs
        if each.is_whole
        and re.match(rf"{re.escape(name)}-\d{{8}}T\d{{6}}Z-", each.name)
        and each.url != uploaded_to
        and (not uploaded_to or each.name <= uploaded_to.rpartition("/")[2])
    ]
    return own[-1] if own else None


def compare_folders(base: Path, new: Path) -> Compared:
    """Compare two folders of runs, experiments or qualifications, without their single requests.
    Raises AiperfError."""
    before, after = map(_qualification, (base, new))
    if before is not None and after is not None:
        return _compared_nodes(changes(before, after))
    found = compare_groups(map(read_group, folder_groups([base, new])))
    rows = [row for row in found.rows if row.gates]
    return Compared(
        _judgement(found),
        tuple(
            DeliveredRow(
                metric=f"{row.key.tag}.{row.key.stat}" if row.key.stat else row.key.tag,
                base=row.base.mean,
                new=row.new.mean,
                delta=row.delta,
                word=str(row.word),
            )
            for row in rows
        ),
        tuple(map(_line, rows)),
    )


def _qualification(folder: Path) -> Qualification | None:
    return read_experiment_file(folder).qualification if is_experiment(folder) else None


def _compared_nodes(found: Sequence[NodeChange]) -> Compared:
    changed = [each for each in found if each.change != "same"]
    rows = (
        DeliveredRow(
            metric=each.check,
            base=each.base,
            new=each.new,
            delta=None if each.share is None else each.share - 1,
            word=each.change,
            node=each.node,
        )
        for each in changed
    )
    is_worse = any(each.is_worse for each in changed)
    judgement = str(Word.WORSE) if is_worse else f"not {Word.WORSE}"
    return Compared(judgement, tuple(rows), tuple(map(_node_line, changed)))


def _node_line(each: NodeChange) -> str:
    per, unit = readable_unit(each.unit, max(each.base or 0.0, each.new or 0.0))
    values = f"{number(each.base, per=per)} → {number(each.new, per=per)} {unit}".rstrip()
    return f"  {one_line(each.node) or 'all nodes'}: {each.check}: {values} ({each.change})"
