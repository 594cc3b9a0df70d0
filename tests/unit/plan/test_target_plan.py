"""The stack's own target."""

from typing import Any

import pytest

from aiperf_svc.domain.errors import ConfigError
from tests.support.plans import make_config, pod, to_plan, with_keys


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("http://target", "http://target-bench:8000"),
        ("http://target:8000/v2", "http://target-bench:8000/v2"),
    ],
)
def test_host_target_is_the_stacks_target(url: str, resolved: str) -> None:
    config = make_config(url=url, target={"kind": "mock"})
    planned = to_plan(config).config.inference
    assert planned is not None
    assert planned.endpoint.url == resolved


@pytest.mark.parametrize("url", ["http://target:9", "http://elsewhere.example"])
def test_url_past_own_target_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected 'http://target'"):
        to_plan(make_config(url=url, target={"kind": "mock"}))


def test_host_target_without_a_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set deployment\.target\.kind"):
        to_plan(make_config(url="http://target", target={"kind": "none"}))


def test_mock_uses_own_image_and_configured_model() -> None:
    made = pod(to_plan(make_config(target={"kind": "mock", "args": ["--ttft", "5ms"]})), "target")
    assert made.image.name == "localhost/aiperf-svc:1.2.3"
    assert made.command == ("python", "-P", "-m", "aiperf_svc.mock_server")
    assert made.args == (
        *("--host", "::", "--port", "8000", "--model", "m"),
        *("--ttft", "5ms"),
    )


def test_mock_supports_http2_on_request() -> None:
    config = with_keys(make_config(target={"kind": "mock"}), endpoint={"http2": True})
    assert pod(to_plan(config), "target").args[-1] == "--http2"


def _vllm(**target: Any) -> Any:
    return pod(to_plan(make_config(target={"kind": "vllm", **target})), "target")


def test_vllm_serves_configured_model_on_all_gpus() -> None:
    made = _vllm(gpu={"count": 4, "type": "NVIDIA-H100"}, args=["--max-model-len", "4096"])
    assert made.args == (
        *("--model", "m", "--port", "8000", "--tensor-parallel-size", "4"),
        *("--max-model-len", "4096"),
    )
    assert made.probe.path == "/health"
    assert made.placement.node_selector == {"nvidia.com/gpu.product": "NVIDIA-H100"}
    assert [t.key for t in made.placement.tolerations] == ["nvidia.com/gpu"]


def test_target_readiness_has_its_own_timeout() -> None:
    made = _vllm(ready_timeout="30m", gpu={})
    assert made.ready_timeout_s == 1800


def test_ordinary_variables_are_allowed_in_environment() -> None:
    env = {"TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "WARNING", "KEYS": "1"}
    assert _vllm(env=env).env.items() >= env.items()


def test_shared_memory_is_a_volume_in_memory() -> None:
    made = _vllm(shared_memory="8Gi")
    volume = next(v for v in made.volumes if v.path == "/dev/shm")
    assert (volume.kind, volume.size_bytes) == ("memory", 8 * 2**30)


def test_volumes_are_read_only_by_default() -> None:
    existing = {"mode": "existing", "name": "bench"}
    volumes = [
        {"kind": "claim", "source": "weights", "path": "/models"},
        {"kind": "claim", "source": "cache", "path": "/cache", "read_only": False},
        {"kind": "image", "source": "registry.example/llama:1", "path": "/weights"},
    ]
    target = {"kind": "vllm", "volumes": volumes, "env": {"HF_HOME": "/models"}}
    made = to_plan(make_config(target=target, namespace=existing))
    mounted = {v.source: (v.kind, v.path, v.is_read_only) for v in pod(made, "target").volumes}
    assert mounted["weights"] == ("existing-claim", "/models", True)
    assert mounted["cache"] == ("existing-claim", "/cache", False)
    assert mounted["registry.example/llama:1"] == ("image", "/weights", True)
    assert made.pod_security == "restricted"


def test_folder_of_the_node_needs_privileged_namespace() -> None:
    volume = {"kind": "host-path", "source": "/srv/models", "path": "/models"}
    made = to_plan(make_config(target={"kind": "vllm", "volumes": [volume]}))
    assert made.pod_security == "privileged"
    assert "Pod Security privileged: target mounts /srv/models of its node" in made.notes


def test_claim_needs_existing_namespace() -> None:
    volume = {"kind": "claim", "source": "weights", "path": "/models"}
    with pytest.raises(ValueError, match=r"claim weights .*mode: existing"):
        make_config(target={"kind": "vllm", "volumes": [volume]})


def _volume(kind: str, source: str, **more: Any) -> dict[str, Any]:
    return {"kind": "vllm", "volumes": [{"kind": kind, "source": source, "path": "/m", **more}]}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (_volume("host-path", "models"), "expected the path of a folder"),
        (_volume("image", "weights"), "no fixed version"),
        (_volume("image", "weights:1", read_only=False), "cannot be written"),
        (_volume("host-path", "/m", path="/tmp/"), "/tmp is mounted already"),
        ({**_volume("host-path", "/m"), "kind": "none"}, "need kind"),
        ({"kind": "custom"}, "needs image"),
        ({"kind": "mock", "image": "x:1"}, "use kind: custom"),
        ({"kind": "none", "gpu": {"count": 1}}, "need kind"),
        ({"kind": "mock", "egress_cidrs": ["10.0.0.0/8"]}, "outside the stack"),
        (
            {"kind": "vllm", "env": {"HF_TOKEN": "x"}},
            r"env\.HF_TOKEN .* use secret_env: \{HF_TOKEN: NAME\}",
        ),
        ({"kind": "vllm", "env": {"OPENAI_API_KEY": "x"}}, "secret_env"),
        ({"kind": "vllm", "env": {"DB_PASSWORD": "x"}}, "secret_env"),
    ],
)
def test_settings_unsupported_by_target_kind_are_refused(
    target: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(target=target)
