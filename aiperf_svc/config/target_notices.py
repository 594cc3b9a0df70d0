"""Notices for the user about the connection to the target, before the load begins."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.urls import address_of

UNCHECKED = (
    "endpoint.tls.verify is false: the server's certificate is not checked, so others on the "
    "network could read and answer the requests"
)


def is_unchecked(config: BenchmarkConfig) -> bool:
    """Return whether the target uses TLS and its certificate is not checked."""
    return address_of(config.endpoint.url).is_tls and not config.endpoint.tls.verify


def target_notices(config: BenchmarkConfig, environ: Mapping[str, str]) -> list[str]:
    """Return the notices, one line each; empty if there are none."""
    found = [UNCHECKED] if is_unchecked(config) else []
    variable = proxy_variable(config.endpoint.url, environ)
    if variable and config.endpoint.proxy is None:
        found.append(
            f"{variable} is set but ignored: requests go directly to the target, so that latencies "
            "do not include a proxy; --proxy (endpoint.proxy) measures through one"
        )
    return found


def proxy_variable(url: str, environ: Mapping[str, str]) -> str:
    """Return the variable that would make other programs use a proxy for a URL; empty if there is
    none."""
    host, port, is_tls = address_of(url)
    scheme = "https" if is_tls else "http"
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in names if environ.get(name)), "")
    excepted = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    entries = (entry.strip().lower() for entry in excepted.split(","))
    if any(_is_covered(host.lower(), port, entry) for entry in entries if entry):
        return ""
    return variable


def _is_covered(host: str, port: int, entry: str) -> bool:
    """Return whether an entry of NO_PROXY covers a host: a name, its parent, an address or a
    network."""
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        pass  # a name, or a name and its port
    name, _, given_port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
    if given_port and given_port != str(port):
        return False
    name = name.removeprefix("*").removeprefix(".")
    return host == name or host.endswith(f".{name}")
