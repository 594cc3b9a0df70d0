"""The body of a response that is none says what went wrong."""

import pytest

from aiperf_svc.core.responses.error_bodies import MESSAGE_CHARACTERS, explain, hint_for, said_under
from aiperf_svc.domain.outcomes import ErrorKind

REFUSED = b'{"error": {"message": "no such model"}}'
LONG = b'{"error": {"message": "unknown member ignore_eos %s"}}'
EXPECTED = ("text/event-stream", "application/x-ndjson")


def explained(status: int, body: bytes, *, coding: str = "") -> tuple[ErrorKind, str]:
    return explain(status, body, content_type="text/html", content_coding=coding, expected=EXPECTED)


@pytest.mark.parametrize(
    ("body", "coding", "message"),
    [
        (REFUSED, "", "no such model"),
        (b"", "", "status 404"),
        (REFUSED, "gzip", "status 404; the body is compressed, gzip"),
    ],
)
def test_a_bad_status_says_what_its_body_says(body: bytes, coding: str, message: str) -> None:
    assert said_under(404, body, content_coding=coding) == message


def test_a_hint_stays_whole_behind_a_long_message() -> None:
    body = LONG % (b"x" * 2 * MESSAGE_CHARACTERS)
    hint = hint_for(400, body)
    said = said_under(400, body, content_coding="")
    assert hint
    assert said.endswith(hint)
    assert len(said) <= MESSAGE_CHARACTERS


@pytest.mark.parametrize(
    ("status", "body", "coding", "expected"),
    [
        (302, b"elsewhere", "", (ErrorKind.STATUS, "not followed: elsewhere")),
        (302, b"elsewhere", "gzip", (ErrorKind.STATUS, "redirects are not followed")),
        (200, REFUSED, "", (ErrorKind.SERVER, "no such model")),
        (200, REFUSED, "gzip", (ErrorKind.CONTENT_TYPE, "server or in the proxy before it")),
        (
            200,
            b"<h1>hi</h1>",
            "",
            (
                ErrorKind.CONTENT_TYPE,
                "content type text/html, expected text/event-stream or application/x-ndjson: "
                "<h1>hi</h1>",
            ),
        ),
        (200, b"", "", (ErrorKind.CONTENT_TYPE, "or application/x-ndjson")),
    ],
)
def test_unreadable_body_is_explained(
    status: int, body: bytes, coding: str, expected: tuple[ErrorKind, str]
) -> None:
    kind, text = explained(status, body, coding=coding)
    assert kind is expected[0]
    assert text.endswith(expected[1])
