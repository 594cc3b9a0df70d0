"""Provenance of client and target, from pages and servers, without secrets."""

import json
from datetime import UTC, datetime

import pytest

from aiperf_svc.core.results.provenance import (
    CLIENT_FACTS,
    TARGET_FACTS,
    UNKNOWN,
    Provenance,
    provenance_of,
    shown_arguments,
)
from aiperf_svc.core.telemetry.families import ENGINES
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.server_facts import engine_of, information_facts, stated_facts
from tests.support.fake_sources import at, recorded


def read(page: str, *, is_gpu: bool = False) -> SourceLog:
    return recorded(page, second=3, is_gpu=is_gpu)


def target(*logs: SourceLog) -> dict[str, str]:
    return provenance_of({}, (), logs, begin_ns=at(0), end_ns=at(9)).target


def test_unread_facts_are_unknown() -> None:
    assert target() == dict.fromkeys(TARGET_FACTS, UNKNOWN)
    client = provenance_of({"cpu": "x"}, (), (), begin_ns=at(0), end_ns=at(9)).client
    lost = {"stolen_share": "0.0000", "throttled_share": "0.0000"}
    assert client == dict.fromkeys(CLIENT_FACTS, UNKNOWN) | {"cpu": "x"} | lost


def test_each_server_is_recognized_by_its_metrics() -> None:
    pages = {
        "vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llamacpp", "TGI": "tgi",
        "TensorRT-LLM": "trtllm", "Triton": "triton", "Dynamo": "dynamo",
        "llm-d router": "llm-d", "SGLang router": "sglang-router",
    }  # fmt: skip
    found = {name: engine_of(read(page)) for name, page in pages.items()}
    assert found == {each.name: each for each in ENGINES}
    assert engine_of(read("dcgm")) is None


def test_gpus_have_their_driver_limits_and_clocks() -> None:
    found = target(read("dcgm", is_gpu=True))
    assert (found["gpus"], found["gpu_model"]) == ("2", "NVIDIA H100 80GB HBM3")
    assert (found["driver"], found["power_limit_w"]) == ("550.54.15", "700")
    assert (found["max_sm_clock_mhz"], found["cuda"]) == ("1980", UNKNOWN)


def test_gpus_read_through_nvml_have_their_cuda_version() -> None:
    found = target(read("nvml", is_gpu=True))
    assert (found["gpus"], found["gpu_model"]) == ("1", "NVIDIA H200")
    assert (found["driver"], found["cuda"]) == ("580.159.04", "13.0")
    assert (found["power_limit_w"], found["max_sm_clock_mhz"]) == ("700", "1980")


def test_replicas_that_differ_show_both_values() -> None:
    logs = [read("vllm"), read("vllm")]
    logs[0].facts["engine_version"], logs[1].facts["engine_version"] = "0.12.0", "0.11.2"
    assert target(*logs)["engine_version"] == "0.11.2; 0.12.0"


def test_settings_of_information_metrics_are_facts() -> None:
    found = information_facts(read("trtllm"))
    assert found["server.speculative_config.method"] == "eagle3"
    assert found["server.model_config.quantization"] == "fp8"
    assert not [name for name in found if name.endswith(("model_name", "engine_type"))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"version": "0.12.0"}, {"engine_version": "0.12.0"}),
        (
            {"version": "0.5.3", "tp_size": 2, "api_key": "sk-1", "internal_states": [{"a": 1}]},
            {"engine_version": "0.5.3", "server.tp_size": "2", "server.api_key": "***"},
        ),
        (
            {
                "build_info": "b6000", "total_slots": 4, "chat_template": "x" * 500,
                "default_generation_settings": {"n_ctx": 4096, "params": {"seed": 1}},
            },
            {
                "engine_version": "b6000", "server.total_slots": "4", "server.n_ctx": "4096",
                "server.chat_template": "sha256:2eb9bb5cd8dd5c2b",
            },
        ),
        ([], {}),
    ],
)  # fmt: skip
def test_server_states_version_and_settings(content: object, expected: dict[str, str]) -> None:
    found = stated_facts(json.dumps(content))
    if "server.chat_template" in found:
        assert len(found["server.chat_template"]) == len("sha256:") + 16
        found["server.chat_template"] = expected["server.chat_template"]
    assert found == expected


def test_page_without_json_has_no_facts() -> None:
    assert stated_facts("<html>Not found</html>") == {}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("vllm", "serve", "m", "--api-key", "sk-1"), "vllm serve m --api-key ***"),
        (("--api-key=sk-1", "--max-num-seqs=8"), "--api-key=*** --max-num-seqs=8"),
        (("--hf-token", "hf_1", "--tokenizer", "t"), "--hf-token *** --tokenizer t"),
        (("--api-key", "--quiet"), "--api-key --quiet"),
        (("sh", "-c", "echo $HOME"), "sh -c 'echo $HOME'"),
        (
            ("sh", "-c", "export HF_TOKEN=hf_1 && vllm serve m --api-key 'sk 1' --tokenizer t"),
            "sh -c 'export HF_TOKEN=*** && vllm serve m --api-key *** --tokenizer t'",
        ),
        (("sh", "-c", "exec serve --api-key=sk-1; true"), "sh -c 'exec serve --api-key=***; true'"),
        (("env", "HF_TOKEN=hf_1", "serve"), "env 'HF_TOKEN=***' serve"),
        (("--config", '{"a": "b", "api_key": "k 1"}'), """--config '{"a": "b", "api_key": ***}'"""),
        (("sh", "-c", "env -i HF_TOKEN=hf_1 serve -x"), "sh -c 'env -i HF_TOKEN=*** serve -x'"),
        (("sh", "-c", 'sh -c "PGPASSWORD=-pw serve"'), """sh -c 'sh -c "PGPASSWORD=*** serve"'"""),
        (("sh", "-c", "serve --api-key \\\n sk"), "sh -c 'serve --api-key \\\n ***'"),
        (("sh", "-c", "serve --api-key \\\n --quiet"), "sh -c 'serve --api-key \\\n --quiet'"),
        (
            ("sh", "-c", r'serve --config "{\"api_key\": \"k 1\"}" -tp 4'),
            r"""sh -c 'serve --config "{\"api_key\": ***}" -tp 4'""",
        ),
        (("--config", '{"a": {"api_key": "k"}}'), """--config '{"a": {"api_key": ***}}'"""),
    ],
)
def test_arguments_show_no_secrets(arguments: tuple[str, ...], shown: str) -> None:
    assert shown_arguments(arguments) == shown


def test_measured_shares_are_not_compared() -> None:
    found = provenance_of({"kernel": "6.1"}, (), (), begin_ns=0, end_ns=1)
    assert found.client["stolen_share"] == "0.0000"
    assert "client.stolen_share" not in found.compared
    assert found.compared["client.kernel"] == "6.1"


def test_fallback_fills_only_unknown_facts() -> None:
    old = Provenance(client={}, target={"driver": "550", "gpu_model": UNKNOWN})
    found = old.with_facts(client={}, target={}, fallback={"driver": "1", "gpu_model": "H100"})
    assert found.target == {"driver": "550", "gpu_model": "H100"}


@pytest.mark.parametrize(
    ("started", "uptime_s"),
    [
        ("2026-03-01T10:00:00Z", 90.0),
        ("2026-03-01T10:02:00Z", None),
        ("2026-03-01T10:00:00Z; 2026-03-01T10:00:07Z", None),
        (UNKNOWN, None),
    ],
    ids=["before the load", "restarted", "replicas", "unknown"],
)
def test_uptime_counts_from_the_containers_start(started: str, uptime_s: float | None) -> None:
    found = Provenance(client={}, target={"started": started})
    begin = datetime(2026, 3, 1, 10, 1, 30, tzinfo=UTC)
    assert found.uptime_s(int(begin.timestamp()) * 10**9) == uptime_s
    assert "target.started" not in found.compared
