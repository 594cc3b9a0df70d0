"""Settings of the mock server. Each field is a flag, and every value is checked before anything
starts.

Values stay as the user wrote them (text, numbers, flags), so a config can be passed to another
process as arguments and parsed to an equal config. `delays` parses durations and distributions.

The flags' defaults describe a plausible server: with a server that responds at once, the measured
times would be the client's own. The fields' defaults are no delay and no fault; code adds what it
needs.
"""

import argparse
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aiperf_svc.mock_server.delays import duration_ns, parse_delay

T = TypeVar("T")


class MockServerConfigError(ValueError):
    """An invalid setting; names the flag, its value, and the expected value."""


def _option(default: T, text: str, *, choices: tuple[str, ...] = (), flag: T | None = None) -> T:
    """Return a field with its help text, typed as its default, as dataclass does. `flag` is the
    default of its flag if it differs."""
    metadata = {"help": text, "choices": choices, "flag": default if flag is None else flag}
    made: T = field(default=default, metadata=metadata)
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class MockServerConfig:
    """Settings of one mock server. Raises MockServerConfigError for an invalid value."""

    host: str = _option("127.0.0.1", "addresses to listen on, separated by commas; :: for all")
    port: int = _option(0, "port to listen on; 0 selects a free one")
    ports: int = _option(
        1, "number of ports, consecutive from --port on, or free ones if --port is 0"
    )
    processes: int = _option(1, "number of serving processes, which share every port")
    model: str = _option("mock-model", "model name that /v1/models lists")
    strict_model: bool = _option(False, "refuse requests for any other model with 404")
    ttft: str = _option(
        "0",
        "time to first token: 20ms, or a distribution such as normal:20ms,2ms; 0 is immediate",
        flag="normal:50ms,10ms",
    )
    itl: str = _option(
        "0",
        "time between tokens: 5ms, exp:5ms, uniform:2ms,8ms, lognormal:5ms,0.5; 0 is no delay",
        flag="10ms",
    )
    tokens: int = _option(32, "tokens of a response; a request's max_tokens can make it shorter")
    force_tokens: bool = _option(False, "always send --tokens tokens, regardless of the request")
    slots: int = _option(
        0, "concurrent responses; other requests wait in order of arrival; 0 is no limit"
    )
    reasoning_tokens: int = _option(
        0, "reasoning tokens before the response (not for completions and generate)"
    )
    role_chunk: bool = _option(False, "send the role in a chunk of its own before the first token")
    usage: str = _option(
        "requested", "when streams include usage", choices=("requested", "always", "never")
    )
    tool_calls: int = _option(
        0,
        "tool calls in responses to requests that offer tools and do not end with a result",
    )
    refusals: bool = _option(False, "refuse to answer: send the text of the chat API as a refusal")
    check_history: bool = _option(
        False, "refuse histories that a real API would refuse, or with responses that were not sent"
    )
    prefix_cache_block: int = _option(
        0, "words per block of a prefix cache, whose hits the usage reports; 0 is no cache"
    )
    max_model_len: int = _option(
        0,
        "context length in tokens; a longer prompt with output gets status 400; 0 is no limit",
    )
    embedding_dimensions: int = _option(8, "dimensions of an embedding")
    seed: int = _option(0, "seed of all random choices; each process derives its own")
    error_rate: float = _option(0.0, "share of requests that get --error-status")
    error_status: int = _option(500, "HTTP status that --error-rate returns")
    cut_rate: float = _option(0.0, "share of requests whose connection is cut halfway")
    hang_rate: float = _option(0.0, "share of requests that never get a response")
    malformed_rate: float = _option(0.0, "share of requests that get malformed JSON")
    slow_start: str = _option("0", "return 503 to everything for this long after the start")
    respawn: str = _option("0", "replace a serving process this long after it dies; 0 is to stop")
    freeze_at: str = _option("0", "begin the freeze this long after the first request")
    freeze_for: str = _option("0", "serve nothing at all for this long; 0 is no freeze")
    keepalive_timeout: str = _option("0", "close connections idle for this long; 0 is never")
    refuse: str = _option("", "refuse bodies with these members, separated by commas; status 400")
    api_key: str = _option("", "require `Authorization: Bearer KEY`; 401 otherwise")
    http2: bool = _option(False, "also serve HTTP/2: by ALPN over TLS, by prior knowledge without")
    tls_cert: str = _option("", "PEM file of the certificate chain; turns TLS on")
    tls_key: str = _option("", "PEM file of the private key")
    truth: bool = _option(False, "keep one row per request with its arrival and send times")
    truth_limit: int = _option(2_000_000, "limit on chunk times, and on rows, that a process keeps")
    json: bool = _option(False, "print the address as one JSON object")
    owner_fd: int = _option(-1, "stop when this inherited pipe reaches its end; -1 is none")

    def __post_init__(self) -> None:
        """Check every value, alone and in combination."""
        for name, minimum, maximum in _RANGES:
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                raise _refusal(name, value, f"expected a number from {minimum} to {maximum}")
        for name in ("ttft", "itl"):
            _checked(name, getattr(self, name), parse_delay)
        for name in ("slow_start", "respawn", "freeze_at", "freeze_for", "keepalive_timeout"):
            _checked(name, getattr(self, name), duration_ns)
        for entry in dataclasses.fields(self):
            choices = entry.metadata["choices"]
            if choices and getattr(self, entry.name) not in choices:
                raise _refusal(
                    entry.name, getattr(self, entry.name), f"expected one of {', '.join(choices)}"
                )
        self._check_together()

    def _check_together(self) -> None:
        if not all(self.hosts):
            raise _refusal("host", self.host, "expected addresses separated by commas")
        rates = self.error_rate + self.cut_rate + self.hang_rate + self.malformed_rate
        if rates > 1:
            raise MockServerConfigError(
                f"--error-rate, --cut-rate, --hang-rate and --malformed-rate add up to {rates:g}; "
                "expected at most 1: lower one of them"
            )
        if self.slots and self.processes > 1:
            raise _refusal("slots", self.slots, "expected --processes 1, where all requests queue")
        if self.check_history and self.processes > 1:
            raise _refusal(
                "processes", self.processes, "expected 1 with --check-history, which knows its own"
            )
        if self.slots and parse_delay(self.ttft).mean_ns + parse_delay(self.itl).mean_ns == 0:
            raise _refusal("slots", self.slots, "expected --ttft or --itl, the time that one takes")
        if self.port and self.port + self.ports - 1 > 65_535:
            raise _refusal(
                "ports",
                self.ports,
                f"expected at most {65_536 - self.port} from --port {self.port}",
            )
        if self.tls_key and not self.tls_cert:
            raise _refusal("tls_key", self.tls_key, "expected --tls-cert too")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise _refusal(name, path, "expected an existing PEM file")

    @property
    def refused(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.refuse.split(",")) - {""}

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.strip() for host in self.host.split(","))


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65_535),
    ("ports", 1, 1_000),
    ("processes", 1, 1_000),
    ("tokens", 1, 1_000_000),
    ("slots", 0, 1_000_000),
    ("reasoning_tokens", 0, 1_000_000),
    ("tool_calls", 0, 128),
    ("prefix_cache_block", 0, 1_000_000),
    ("max_model_len", 0, 1_000_000_000),
    ("embedding_dimensions", 1, 100_000),
    ("error_rate", 0, 1),
    ("error_status", 400, 599),
    ("cut_rate", 0, 1),
    ("hang_rate", 0, 1),
    ("malformed_rate", 0, 1),
    ("truth_limit", 1, 1_000_000_000),
)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refusal(name: str, value: object, expected: str) -> MockServerConfigError:
    return MockServerConfigError(f"{_flag(name)}: {value!r}: {expected}")


def _checked(name: str, value: str, parse: object) -> None:
    assert callable(parse)
    try:
        parse(value)
    except ValueError as error:
        raise MockServerConfigError(f"{_flag(name)}: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per setting to the parser."""
    for entry in dataclasses.fields(MockServerConfig):
        text = entry.metadata["help"].replace("%", "%%")
        text = f"{text[:1].upper()}{text[1:]}."
        hidden, default = entry.name == "owner_fd", entry.metadata["flag"]
        shown = "none" if default == "" else default
        if isinstance(entry.default, bool):
            parser.add_argument(_flag(entry.name), action="store_true", help=text)
        else:
            parser.add_argument(
                _flag(entry.name),
                type=type(entry.default),
                default=default,
                choices=entry.metadata["choices"] or None,
                help=argparse.SUPPRESS if hidden else f"{text} Default: {shown}.",
            )


def config_from_args(args: argparse.Namespace) -> MockServerConfig:
    """Return the config in parsed arguments. Raises MockServerConfigError for an invalid value."""
    names = (entry.name for entry in dataclasses.fields(MockServerConfig))
    return MockServerConfig(**{name: getattr(args, name) for name in names})


def args_from_config(config: MockServerConfig) -> list[str]:
    """Return arguments that `config_from_args` turns back into an equal config."""
    args: list[str] = []
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if value == entry.metadata["flag"]:
            continue
        args.append(_flag(entry.name) if value is True else f"{_flag(entry.name)}={value}")
    return args
