"""Requests to the server before and after the phases of a load. They are not part of the load."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import PositiveDurationNs

ServerPath = Annotated[str, Field(pattern=r"^/[!-~]*$")]
"""Path and query below the server's origin, without the path of the base URL."""


class Hook(Model):
    """One request to each server. A hook before a phase must succeed; the failure of a hook after a
    phase is noted in the results."""

    before: Literal["load", "warmup", "profiling"] | None = None
    """Phase whose first request it precedes; `load` is the first phase, whichever that is."""
    after: Literal["warmup", "profiling"] | None = None
    """Phase after whose last response it is sent."""
    method: Literal["POST", "GET", "PUT", "DELETE"] = "POST"
    path: ServerPath
    body: dict[str, object] | None = None
    """JSON body; without one, the body is empty."""
    timeout: PositiveDurationNs | None = None
    """Timeout of the response. Default: `request_timeout`."""

    @model_validator(mode="after")
    def _has_a_time(self) -> Self:
        if (self.before is None) == (self.after is None):
            raise ValueError("a hook needs {before} or {after}, and not both")
        return self


def _within(timeout_ns: int | None, hook: Hook) -> Hook:
    # A plain number would be read back as seconds.
    return hook.model_copy(update={"timeout": timeout_ns})


class ResetKvCache(Model):
    """A hook before the load that empties the server's prefix cache. SGLang's path is
    `/flush_cache`; vLLM has its own with VLLM_SERVER_DEV_MODE=1."""

    path: ServerPath = "/reset_prefix_cache"
    """Path of the request that empties the cache. SGLang uses `/flush_cache`."""
    timeout: PositiveDurationNs | None = None
    """Timeout of this request. Default: `endpoint.request_timeout`."""

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hook."""
        return (_within(self.timeout, Hook(before="load", path=self.path)),)


class ServerProfiler(Model):
    """Hooks that start the server's profiler before profiling and stop it after."""

    start_path: ServerPath = "/start_profile"
    """Path of the request that starts the profiler."""
    stop_path: ServerPath = "/stop_profile"
    """Path of the request that stops it."""
    timeout: PositiveDurationNs | None = None
    """Timeout of each of these requests. Default: `endpoint.request_timeout`."""

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The two hooks."""
        return (
            _within(self.timeout, Hook(before="profiling", path=self.start_path)),
            _within(self.timeout, Hook(after="profiling", path=self.stop_path)),
        )


class Hooks(Model):
    """The hooks of an endpoint. Common ones have keys of their own."""

    reset_kv_cache: ResetKvCache | None = None
    """Empty the server's prefix cache before the load. In a file: `true`, or an object with other
    settings."""
    server_profiler: ServerProfiler | None = None
    """Start the server's profiler before the measurement and stop it afterwards. In a file: `true`,
    or an object with other settings."""
    hooks: tuple[Hook, ...] = ()

    @field_validator("reset_kv_cache", "server_profiler", mode="before")
    @classmethod
    def _may_be_a_switch(cls, value: object) -> object:
        return ({} if value else None) if isinstance(value, bool) else value

    @property
    def all_hooks(self) -> tuple[Hook, ...]:
        """Return all hooks. Those of the same time are sent in this order."""
        named = (self.reset_kv_cache, self.server_profiler)
        return (*(hook for each in named if each is not None for hook in each.hooks), *self.hooks)
