"""`--otlp` takes a URL. Its secrets come only from the environment."""

import pytest

from aiperf_svc.cli.options import metrics_address, otlp_target
from aiperf_svc.domain.errors import ConfigError

ALL, METRICS = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"


def test_headers_are_not_read_without_the_flag() -> None:
    assert otlp_target(None, {ALL: "not a header"}) is None


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("https://collector/", "https://collector/v1/metrics"),
        ("https://gateway/otlp/v1/metrics", "https://gateway/otlp/v1/metrics"),
    ],
)
def test_otlp_url_without_path_gets_the_default_path(url: str, whole: str) -> None:
    target = otlp_target(url, {})
    assert target is not None
    assert target.url == whole


def test_metrics_headers_override_general_headers() -> None:
    environ = {ALL: "api-key=a%20b%3D, x-team=perf", METRICS: "x-team=bench"}
    target = otlp_target("http://c:4318", environ)
    assert target is not None
    assert target.headers == {"api-key": "a b=", "x-team": "bench"}
    assert "a b=" not in repr(target)


@pytest.mark.parametrize(
    "url", ["collector:4318", "http://user:key@collector", "http://c:4318/?key=1", "ftp://c", ""]
)
def test_wrong_url_or_url_with_key_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp: expected a URL .* OTEL_EXPORTER_OTLP_HEADERS"):
        otlp_target(url, {})


@pytest.mark.parametrize("text", ["s3cret", "a b=1", "=1", "key=", "key=a%0D%0Ab"])
def test_wrong_headers_are_refused_without_their_values(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        otlp_target("http://c:4318", {METRICS: text})
    assert str(caught.value) == f"{METRICS}: expected NAME=VALUE, separated by commas"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (None, None),
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_metrics_page_listens_locally_without_a_host(
    text: str | None, address: tuple[str, int] | None
) -> None:
    assert metrics_address(text) == address


@pytest.mark.parametrize("text", ["", "metrics", "0", "65536", "host:", "²", "-1"])
def test_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address; expected a port such as 9464"):
        metrics_address(text)
