"""The setup of a run's server in the terms of other benchmarks: framework, GPUs and parallelism,
for exports of a run.

Facts from the user take precedence over those of `provenance.json`. A fact in neither is unknown
and has no key here. A flag that is absent from known arguments has the default of all servers: one.
Arguments are not completely known if a file or a variable contains some of them.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from aiperf_svc.core.results.provenance import UNKNOWN, Provenance
from aiperf_svc.domain.errors import ConfigError

FACTS = (
    "hw", "model_prefix", "framework", "precision", "spec_decoding", "image", "replicas", "gpus",
    "gpu_model", "tp", "pp", "dp", "ep", "dcp_size", "pcp_size", "dp_attention",
    "recipe_fingerprint", "kv_offloading", "kv_offload_backend", "allocated_cpu_dram_gb", "disagg",
    "is_multinode",
)  # fmt: skip
"""Names of facts that a user can set."""
SWITCHES = frozenset(("disagg", "is_multinode"))
"""Facts that are `true` or `false`."""
NUMBERS = frozenset(
    ("replicas", "gpus", "tp", "pp", "dp", "ep", "dcp_size", "pcp_size", "allocated_cpu_dram_gb")
)
_FRAMEWORKS = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trt", "llama.cpp": "llamacpp"}
_FLAGS = {
    "tp": ("--tensor-parallel-size", "-tp", "--tp-size", "--tp"),
    "pp": ("--pipeline-parallel-size", "-pp", "--pp-size", "--pp"),
    "dp": ("--data-parallel-size", "-dp", "--dp-size", "--dp"),
    "ep": ("--ep-size", "--ep", "--expert-parallel-size"),
    "dcp_size": ("--decode-context-parallel-size", "-dcp"),
    "pcp_size": ("--prefill-context-parallel-size", "-pcp"),
}
"""Flags of vLLM and SGLang."""
_REPORTED_SETTINGS = {"tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "ep": "ep_size"}
"""Names of SGLang's reported settings."""
_BEFORE_SCRIPT = re.compile(r"-[a-z]*c")
"""Shell flag before a script."""
_HARDWARE = re.compile(r"(?<![A-Z0-9])(GB300|GB200|B300|B200|H200|H100|MI\d{3}X)(?![A-Z0-9])")


def read_facts(written: Sequence[str]) -> dict[str, str]:
    """Return the user's facts in the form `name=value`. Raises ConfigError."""
    found = {}
    for each in written:
        name, separator, value = each.partition("=")
        if name not in FACTS or not separator or not value:
            raise ConfigError(
                f"--fact: {each!r}: expected NAME=VALUE with one of {', '.join(FACTS)}"
            )
        if name in NUMBERS and not (value.isdecimal() and int(value)):
            raise ConfigError(f"--fact: {each!r}: expected a number of at least 1")
        if name in SWITCHES and value not in ("true", "false"):
            raise ConfigError(f"--fact: {each!r}: expected true or false")
        found[name] = value
    return found


def setup_of(
    provenance: Provenance | None, facts: Mapping[str, str], *, gpus: float | None = None
) -> dict[str, str]:
    """Return the known facts by the names of `FACTS`, and `engine_version`. `gpus` is the number of
    GPUs in the run's economics."""
    target = provenance.target if provenance is not None else {}
    known = {name: value for name, value in target.items() if value not in ("", UNKNOWN)}
    names: tuple[str, ...] = ("image", "gpus", "gpu_model", "engine_version")
    found = {name: known[name] for name in names if name in known}
    if gpus is not None:
        found["gpus"] = f"{gpus:.0f}"
    if known.get("engine") in _FRAMEWORKS:
        found["framework"] = _FRAMEWORKS[known["engine"]]
    if hardware := _HARDWARE.search(known.get("gpu_model", "").upper()):
        found["hw"] = hardware[1].lower()
    for name, setting in _REPORTED_SETTINGS.items():
        if f"server.{setting}" in known:
            found[name] = known[f"server.{setting}"]
    if "node" in known and ";" not in known["node"]:
        found["is_multinode"] = "false"
    if "arguments" in known and found.get("framework") in ("vllm", "sglang"):
        found |= _argument_facts(known["arguments"])
    return found | dict(facts)


def _argument_facts(text: str) -> dict[str, str]:
    try:
        arguments, is_whole = _words(text)
    except ValueError:
        return {}
    values: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        flag, separator, value = argument.partition("=")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        stated = value if separator else following
        # Pods may have different commands.
        values[flag] = stated if values.get(flag, stated) == stated else ""
    found = {
        name: next((values[flag] for flag in flags if flag in values), "1" if is_whole else "")
        for name, flags in _FLAGS.items()
    }
    found = {name: value for name, value in found.items() if value.isdecimal()}
    if "--enable-expert-parallel" in values and {"tp", "dp"} <= found.keys():
        found["ep"] = str(int(found["tp"]) * int(found["dp"]))
    if is_whole or "--enable-dp-attention" in values:
        found["dp_attention"] = "true" if "--enable-dp-attention" in values else "false"
    if values.get("--disaggregation-mode", "null") != "null":
        found["disagg"] = "true"
    elif is_whole and "--kv-transfer-config" not in values:
        found["disagg"] = "false"
    if precision := values.get("--quantization"):
        found["precision"] = precision
    return found | _speculation(values, is_whole=is_whole)


def _words(text: str) -> tuple[list[str], bool]:
    """Return the words of a command, including those of a shell's script, and whether the server
    gets no others. Raises ValueError."""
    words: list[str] = []
    is_whole = True
    for argument in shlex.split(text):
        if words and _BEFORE_SCRIPT.fullmatch(words[-1]):
            is_whole &= "$" not in argument
            words += shlex.split(argument.replace("\\\n", " "))
        else:
            words.append(argument)
    # It ends the commands of several pods or of a script.
    words = [word.rstrip(";") for word in words]
    is_file = any(word.endswith(".sh") or word.partition("=")[0] == "--config" for word in words)
    return words, is_whole and not is_file


def _speculation(values: Mapping[str, str], *, is_whole: bool) -> dict[str, str]:
    if (algorithm := values.get("--speculative-algorithm")) is not None:
        return {"spec_decoding": algorithm.lower()} if algorithm else {}
    if "--speculative-config" not in values:
        return {"spec_decoding": "none"} if is_whole else {}
    try:
        config = json.loads(values["--speculative-config"])
        method = config["method"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {"spec_decoding": method} if isinstance(method, str) else {}
