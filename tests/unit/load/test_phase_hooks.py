"""Which hooks are due when, and how their responses are handled."""

import pytest
from pydantic import ValidationError

from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.config.hooks import Hook
from aiperf_svc.core.load.phase_hooks import hooks_at, origins, problem_of
from aiperf_svc.domain.outcomes import Phase
from tests.support import fake_run


def endpoint(**fields: object) -> Endpoint:
    return Endpoint.model_validate({"url": "http://a:1/v1", "model": "m", **fields})


def paths(found: Endpoint, when: str, phase: Phase, *, is_first: bool = False) -> list[str]:
    assert when in ("before", "after")
    time = "before" if when == "before" else "after"
    return [hook.path for hook in hooks_at(found, time, phase, is_first=is_first)]  # type: ignore[arg-type]


def test_the_named_hooks_are_requests_at_their_times() -> None:
    found = endpoint(reset_kv_cache=True, server_profiler={"stop_path": "/end"})
    assert paths(found, "before", Phase.WARMUP, is_first=True) == ["/reset_prefix_cache"]
    assert paths(found, "before", Phase.PROFILING) == ["/start_profile"]
    assert paths(found, "before", Phase.PROFILING, is_first=True) == [
        "/reset_prefix_cache",
        "/start_profile",
    ]
    assert paths(found, "after", Phase.PROFILING) == ["/end"]
    assert paths(found, "after", Phase.WARMUP) == []
    assert endpoint(reset_kv_cache=False, server_profiler=False).all_hooks == ()


def test_hooks_call_each_server_once() -> None:
    found = endpoint(urls=["http://a:1/v2", "https://b", "http://user:pw@c:2"])
    assert origins(found) == ("http://a:1", "https://b", "http://c:2")


@pytest.mark.parametrize("times", [{}, {"before": "load", "after": "profiling"}])
def test_a_hook_has_one_time(times: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"a hook needs \{before\} or \{after\}"):
        Hook.model_validate({"path": "/x", **times})


def test_warmup_hook_without_a_warmup_is_refused() -> None:
    hook = {"path": "/x", "after": "warmup"}
    with pytest.raises(ValidationError, match="/x belongs to the warmup, and there is no"):
        fake_run.config(concurrency=1, requests=1, endpoint={"hooks": [hook]})


def test_missing_path_is_explained_and_refusals_are_quoted() -> None:
    hook = Hook(before="load", path="/reset_prefix_cache?reset_external=true")
    assert problem_of(hook, 204, "") == ""
    assert "VLLM_SERVER_DEV_MODE=1; SGLang's is /flush_cache" in problem_of(hook, 404, "Not Found")
    assert problem_of(hook, 400, "requests are running") == "status 400: requests are running"
