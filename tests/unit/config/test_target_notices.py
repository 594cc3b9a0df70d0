"""Notices about the connection to the target before a run."""

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.target_notices import UNCHECKED, proxy_variable, target_notices
from tests.support.small_configs import small_config

PROXY = "http://proxy:3128"


def config(url: str, **tls: object) -> BenchmarkConfig:
    return small_config(url, endpoint={"tls": tls})


@pytest.mark.parametrize(
    ("url", "environ", "variable"),
    [
        ("http://h", {}, ""),
        ("http://h", {"http_proxy": PROXY}, "http_proxy"),
        ("http://h", {"HTTP_PROXY": PROXY}, "HTTP_PROXY"),
        ("http://h", {"HTTPS_PROXY": PROXY}, ""),
        ("https://h", {"HTTPS_PROXY": PROXY}, "HTTPS_PROXY"),
        ("https://h", {"ALL_PROXY": PROXY}, "ALL_PROXY"),
        ("http://h", {"http_proxy": ""}, ""),
    ],
)
def test_proxy_variable_matches_the_urls_scheme(
    url: str, environ: dict[str, str], variable: str
) -> None:
    assert proxy_variable(url, environ) == variable


@pytest.mark.parametrize(
    ("url", "excepted", "is_covered"),
    [
        ("http://h", "*", True),
        ("http://h", "a, h", True),
        ("http://api.test", ".test", True),
        ("http://api.test", "test", True),
        ("http://api.test", "*.test", True),
        ("http://contest", "test", False),
        ("http://h:8000", "h:8000", True),
        ("http://h:8000", "h:9000", False),
        ("http://10.1.2.3", "10.0.0.0/8", True),
        ("http://10.1.2.3", "10.1.2.3", True),
        ("http://11.1.2.3", "10.0.0.0/8", False),
        ("http://[::1]:8000", "::1", True),
        ("http://localhost", "127.0.0.1", False),
    ],
)
def test_exceptions_are_understood(url: str, excepted: str, is_covered: bool) -> None:
    environ = {"HTTP_PROXY": PROXY, "NO_PROXY": excepted}
    assert (proxy_variable(url, environ) == "") is is_covered


def test_unchecked_certificate_is_noted() -> None:
    assert target_notices(config("https://h", verify=False), {}) == [UNCHECKED]
    assert target_notices(config("https://h"), {}) == []
    assert target_notices(config("http://h", verify=False), {}) == []


def test_unused_proxy_is_noted() -> None:
    (notice,) = target_notices(config("http://h"), {"HTTP_PROXY": PROXY})
    assert notice.startswith("HTTP_PROXY is set but ignored")
    assert PROXY not in notice
