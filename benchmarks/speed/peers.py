"""Other load generators against the same server, if their command is on PATH.

Their rate is measured on the server: the requests between a tenth and nine tenths of their total,
divided by the time between. This excludes each tool's startup, and no tool reports on itself.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from aiperf_svc.mock_server.running import RunningMockServer

NOT_INSTALLED = "not installed"
REQUESTS = 6_000
TIMEOUT_S = 150.0
POLL_S = 0.1


def commands(url: str, folder: Path, *, concurrency: int) -> dict[str, list[str]]:
    """Return the command line that a user of each would type."""
    tokenizer = _write_tokenizer(folder / "tokenizer")
    aiperf = (
        f"aiperf profile --model mock-model --url {url} --endpoint-type chat --streaming "
        f"--concurrency {concurrency} --request-count {REQUESTS} --isl 50 --num-dataset-entries 200"
        f" --tokenizer {tokenizer} --use-server-token-count --ui none "
        f"--output-artifact-dir {folder}/aiperf"
    )
    guidellm = (
        f"guidellm benchmark --target {url} --rate-type concurrent --rate {concurrency} "
        f"--max-requests {REQUESTS} --data prompt_tokens=50,output_tokens=1 "
        f"--processor {tokenizer} --output-path {folder}/guidellm.json"
    )
    return {"aiperf": aiperf.split(), "guidellm": guidellm.split()}


def _write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer with one token per byte in the files that `transformers` loads. The peers'
    own tokenizers are downloaded on first use."""
    folder.mkdir(exist_ok=True)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder


def measure(server: RunningMockServer, folder: Path, *, concurrency: int) -> dict[str, Any]:
    """Return requests per second and CPU per request of each peer, or why there are none."""
    return {
        name: _measured(server, command, folder)
        if shutil.which(command[0])
        else {"skipped": NOT_INSTALLED}
        for name, command in commands(server.url, folder, concurrency=concurrency).items()
    }


def _measured(server: RunningMockServer, command: list[str], folder: Path) -> dict[str, Any]:
    server.reset()
    log = folder / f"{command[0]}.log"
    seen: list[tuple[float, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, process_group=0
        )
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            seen.append((time.monotonic(), server.truth()["completed"]))
            if time.monotonic() > deadline:
                process.terminate()
                deadline += TIMEOUT_S
            time.sleep(POLL_S)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    total = server.truth()["completed"]
    inner = [(at, count) for at, count in seen if 0.1 * total <= count <= 0.9 * total]
    if len(inner) < 2 or inner[-1][1] == inner[0][1]:
        last_line = log.read_text(errors="replace").strip().splitlines()[-1:]
        return {"failed": f"exit {process.returncode}: {' '.join(last_line)[-300:]}"}
    (began, first), (ended, last) = inner[0], inner[-1]
    return {
        "requests": total,
        "requests_per_s": (last - first) / (ended - began),
        "cpu_us_per_request_whole_life": (usage.ru_utime + usage.ru_stime) / total * 1e6,
    }
