"""The target of a load test, and how requests to it are built."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import SECOND_NS, Model, repeated
from aiperf_svc.config.hooks import Hooks
from aiperf_svc.config.secret_names import secret_paths, secrets_in_query
from aiperf_svc.config.units import DurationNs, PositiveDurationNs
from aiperf_svc.domain.endpoint_types import EndpointType, Feature


class Tls(Model):
    """Settings for the check of the target's certificate, for an https URL."""

    verify: bool = True
    """Verify the server's certificate. If false, any certificate is accepted, and the run and its
    results contain a warning."""
    ca_file: str | None = None
    """PEM file of the certificate authorities to trust for https, instead of the system's."""
    ca: Annotated[str, Field(pattern=r"-----BEGIN CERTIFICATE-----")] | None = None
    """The same authorities as text, for pods of a cluster, which do not have the file."""
    server_name: str | None = None
    """Name to expect in the certificate, if it is not the URL's host."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.ca and self.ca_file:
            raise ValueError("{ca} and {ca_file} both name trusted authorities; set one of them")
        return self


UrlStrategy = Literal["round_robin", "least_in_flight", "per_user"]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][!#$%&'*+.^_`|~0-9A-Za-z-]*$")]
HeaderValue = Annotated[str, Field(pattern=r"^[\t -~\x{a0}-\x{ff}]*$")]
"""A header value without line breaks, since a line break would begin another header."""


MemberPath = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*$")]
"""Name of a member of a JSON object, or dotted names of nested members."""
_FORCED_ENDS = ("ignore_eos", "min_tokens")
"""Members of a request that force the length of its response."""


class Endpoint(Hooks):
    """The target and how a request to it is made."""

    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+.*$")]
    """Base URL of the server, `http://host:port`. The path of the API (`/v1/chat/completions`) is
    added to it, except for the part with which the URL already ends."""
    urls: Annotated[
        tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]+.*$")], ...], Field(max_length=255)
    ] = ()
    """Additional base URLs. Requests go to `url` and to these."""
    proxy: Annotated[str, Field(pattern=r"^http://[^/@?#\s]+/?$")] | None = None
    """HTTP proxy between the workers and the target, `http://host:port`. Requests to an https URL
    use a tunnel. Latencies include the proxy. Variables such as HTTPS_PROXY are ignored."""
    proxy_auth_env: str | None = None
    """Name of the environment variable that holds `user:password` for the proxy."""
    http2: bool = False
    """Send requests over HTTP/2, one at a time on each connection. It is negotiated by ALPN for
    https URLs, and used without negotiation (prior knowledge) for http URLs."""
    url_strategy: UrlStrategy = "round_robin"
    """How requests are distributed over several URLs: `round_robin`; `least_in_flight`, the URL to
    which this worker has the fewest requests in flight; or `per_user`, always the same URL for an
    entry of the dataset. All turns of a conversation go to one URL."""
    type: EndpointType = EndpointType.CHAT
    """API of the server."""
    model: Annotated[str, Field(min_length=1)]
    """Model to request."""
    models: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Additional models, such as LoRA adapters. Each prompt of the dataset is for one of them or
    for `model`."""
    model_weights: tuple[Annotated[int, Field(gt=0, le=1_000)], ...] = ()
    """Relative frequency of each model, `model` first. Default: all equal."""
    model_selection: Literal["round_robin", "random"] = "round_robin"
    """How prompts are assigned to several models: `round_robin`, in proportion to the weights, or
    `random`."""
    streaming: bool = False
    """Request the response token by token. Required for the time to the first token."""
    path: Annotated[str, Field(pattern=r"^/[!-~]*$")] | None = None
    """Path of the API, instead of its default. Types template and raw have no default path."""
    template: Annotated[str, Field(min_length=1)] | None = None
    """Jinja2 template of a request's JSON body, for type template. Its variables are text, texts,
    query, passages, messages, model, max_tokens, stream and role."""
    response_field: Annotated[str, Field(min_length=1)] | None = None
    """JMESPath query for the output in a response, or in an event of a stream, for types template
    and raw. Default: the usual places."""
    output_tokens_field: Annotated[str, Field(min_length=1)] | None = None
    """JMESPath query for the number of output tokens, for the same types."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Headers of every request. Do not put secrets here: use `api_key_env`."""
    session_headers: tuple[HeaderName, ...] = ("X-Session-ID", "X-Correlation-ID")
    """Request headers that carry the id of the conversation, by which routers send all of its turns
    to one server. A header of the same name in `headers` takes precedence."""
    parent_session_headers: tuple[HeaderName, ...] = ()
    """Headers of a subagent's requests that carry the id of the agent that started it, such as
    `X-Dynamo-Parent-Session-ID`. Only agent traces have subagents."""
    session_response_header: HeaderName | None = None
    """Response header in which the server issues an id for the conversation, such as
    `x-session-token`. The later requests of the conversation, or of an agent, send it back under
    the same name."""
    session_body: tuple[MemberPath, ...] = ()
    """Members of the JSON body that carry the id of the conversation, such as `user`,
    `prompt_cache_key` or `session_params.session_id`."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the target's API key."""
    api_key_header: Annotated[str, Field(pattern=r"^\??[A-Za-z0-9_-]+$")] | None = None
    """Header that carries the key: as a bearer token in `Authorization`, as the plain key in any
    other. Default: `x-api-key` for the messages API, `Authorization` for all others. `?NAME` adds
    the key to the query of the path instead."""
    extra_inputs: dict[str, object] = Field(default_factory=dict)
    """Members that are merged into the JSON body of every request."""
    request_timeout: PositiveDurationNs = 600 * SECOND_NS
    """Timeout of a request."""
    connect_timeout: PositiveDurationNs = 30 * SECOND_NS
    """Timeout of a connection attempt."""
    wait_for_server: DurationNs = 0
    """Maximum time to wait before the load for a server that is still loading its model. /health,
    /v1/models and one request are tried."""
    connections: Literal["keep-alive", "per-request"] = "keep-alive"
    """`keep-alive`, or `per-request`: a new connection for each request, for a server that
    announces keep-alive and closes its connections anyway."""
    request_usage: bool = True
    """Ask a streaming server for token usage (`stream_options.include_usage`)."""
    use_server_token_count: bool = False
    """Use the token counts that the server reports, even if a tokenizer is set. The tokenizer then
    only determines the length of prompts."""
    force_output_length: bool = True
    """With an output length in the dataset, also send `ignore_eos` and `min_tokens`, unless a probe
    before the load shows that the server refuses them."""
    prompt_token_ids: bool = False
    """Send prompts as token ids of the tokenizer, with `type: completions`. The server then
    processes exactly these tokens, without a template and without tokenizing."""
    tls: Tls = Tls()
    source_addresses: tuple[str, ...] = ()
    """Local addresses to connect from, in turn. One address allows about 28,000 connections."""

    def grace_ns(self, grace_period: int | None) -> int:
        """Return how long requests in flight may take after the stop: the grace period, or the
        request timeout if the grace period is unlimited."""
        if grace_period is not None:
            return grace_period
        return self.request_timeout + self.connect_timeout + SECOND_NS

    @property
    def natural_inputs(self) -> dict[str, object]:
        """`extra_inputs` without the members that prevent the natural end of a response."""
        return {k: value for k, value in self.extra_inputs.items() if k not in _FORCED_ENDS}

    @property
    def all_urls(self) -> tuple[str, ...]:
        """All base URLs."""
        return (self.url, *self.urls)

    @property
    def first_hops(self) -> tuple[str, ...]:
        """URLs that the workers connect to: the proxy, or all base URLs."""
        return self.all_urls if self.proxy is None else (self.proxy,)

    @property
    def secrets_in_clear(self) -> tuple[str, ...]:
        """Keys with a likely secret that would appear in every copy of the config."""
        found = [
            *secret_paths(self.headers, "endpoint.headers"),
            *secret_paths(self.extra_inputs, "endpoint.extra_inputs"),
            *secrets_in_query(self.path or "", "endpoint.path"),
        ]
        named = {"reset_kv_cache": self.reset_kv_cache, "server_profiler": self.server_profiler}
        for name, each in named.items():
            for hook in each.hooks if each is not None else ():
                found += secrets_in_query(hook.path, f"endpoint.{name}")
        for number, hook in enumerate(self.hooks):
            found += secrets_in_query(hook.path, f"endpoint.hooks.{number}.path")
            found += secret_paths(hook.body or {}, f"endpoint.hooks.{number}.body")
        return tuple(found)

    @property
    def all_models(self) -> tuple[str, ...]:
        """All models."""
        return (self.model, *self.models)

    @model_validator(mode="after")
    def _models_fit(self) -> Self:
        names, weights = self.all_models, self.model_weights
        if twice := repeated(names):
            raise ValueError(f"{{models}}: {twice!r} is given twice; give each model once")
        if weights and len(weights) != len(names):
            raise ValueError(
                f"{{model_weights}}: expected one for each of {len(names)} models, not "
                f"{len(weights)}"
            )
        if self.models and self.type is EndpointType.RAW:
            raise ValueError("{type} raw sends payloads as they are; leave out {models}")
        return self

    @property
    def own_session_headers(self) -> tuple[str, ...]:
        """Session headers, without those that `headers` sets or a response issues."""
        reserved = {name.lower() for name in (*self.headers, self.session_response_header or "")}
        return tuple(name for name in self.session_headers if name.lower() not in reserved)

    @model_validator(mode="after")
    def _session_ids_fit(self) -> Self:
        headers = [name.lower() for name in (*self.session_headers, *self.parent_session_headers)]
        members = [path.lower() for path in self.session_body]
        for key, names in (("session_headers", headers), ("session_body", members)):
            if twice := repeated(names):
                raise ValueError(f"{{{key}}}: {twice!r} is given twice; give each name once")
        for path in self.session_body:
            if path.split(".")[0] in self.extra_inputs:
                raise ValueError(
                    f"{{session_body}} {path} and {{extra_inputs}} set the same member of the "
                    "body; leave out one of them"
                )
            if any(other.startswith(f"{path}.") for other in self.session_body):
                raise ValueError(
                    f"{{session_body}} {path} is a value and the parent of another; leave out one "
                    "of both"
                )
        return self

    @model_validator(mode="after")
    def _describes_its_api(self) -> Self:
        if self.proxy_auth_env is not None and self.proxy is None:
            raise ValueError("{proxy_auth_env} needs {proxy}")
        if self.http2 and self.proxy and any(url.startswith("http:") for url in self.all_urls):
            raise ValueError(
                "{http2} passes {proxy} to https URLs only, in a tunnel; leave out one of them"
            )
        if twice := repeated(self.all_urls):
            raise ValueError(f"{{urls}}: {twice!r} is given twice; give each address once")
        if self.type is EndpointType.TEMPLATE and self.template is None:
            raise ValueError("{type} template needs {template}, the body of a request")
        if self.type is not EndpointType.TEMPLATE and self.template is not None:
            raise ValueError(f"{{template}} needs {{type}} template, not {self.type}")
        for name in ("response_field", "output_tokens_field"):
            if getattr(self, name) is not None and not self.type.has(Feature.CUSTOM):
                raise ValueError(f"{{{name}}} needs {{type}} template or raw, not {self.type}")
        if self.type is EndpointType.RAW and self.extra_inputs:
            raise ValueError("{type} raw sends payloads as they are; leave out {extra_inputs}")
        return self
