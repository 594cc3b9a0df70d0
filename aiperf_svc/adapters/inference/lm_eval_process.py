"""Runs lm-evaluation-harness as the quality gate of a load, against the same server at the same
concurrency, as a child of the records manager."""

import asyncio
import hashlib
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from aiperf_svc.adapters.inference.quality_requests import gate_concurrency
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.quality import SETTINGS_FILE, LmEvalTasks
from aiperf_svc.core.quality import lm_eval
from aiperf_svc.core.quality.gate import Answer, QualityResult, score
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.foreign_text import one_line

_KEPT = 16 * 2**10
"""Length of the end of the program's output that is kept for error messages, in bytes."""


def check_lm_eval(config: BenchmarkConfig) -> None:
    """Raise DatasetError if a config needs lm_eval and it is not on PATH."""
    is_needed = config.quality is not None and config.quality.lm_eval is not None
    if is_needed and shutil.which(lm_eval.PROGRAM) is None:
        raise DatasetError(
            f"quality.lm_eval needs {lm_eval.PROGRAM}, which is not on PATH where the records "
            f"manager runs; {lm_eval.REMEDY}, on a cluster in the image of deployment.image.name"
        )


async def measure_lm_eval(config: BenchmarkConfig) -> tuple[QualityResult, list[Answer]]:
    """Run the tasks of the config's quality gate. Raises DatasetError if they do not produce a
    score for each question."""
    quality = config.quality
    assert quality is not None
    assert quality.lm_eval is not None
    tasks, users = quality.lm_eval, gate_concurrency(config)
    with TemporaryDirectory(prefix="aiperf-lm-eval-") as name:
        folder = Path(name)
        await asyncio.to_thread(_write, folder, tasks, config, users)
        await _run(folder, config, quality.timeout / 1e9)
        try:
            return await asyncio.to_thread(_result, folder, tasks, config, users)
        except ValueError as error:
            raise DatasetError(f"quality.lm_eval: {one_line(str(error))}") from error


def _write(folder: Path, tasks: LmEvalTasks, config: BenchmarkConfig, users: int) -> None:
    for name, text in tasks.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    natural = {"extra_inputs": config.endpoint.natural_inputs}
    endpoint = config.endpoint.model_copy(update=natural)
    settings = lm_eval.settings(tasks, endpoint, concurrency=users)
    (folder / SETTINGS_FILE).write_bytes(settings)


def _environment(folder: Path, config: BenchmarkConfig) -> dict[str, str]:
    found = dict(os.environ)
    if not os.access(found.get("HOME", ""), os.W_OK):
        # In a pod, downloads must not go to the home folder.
        found.setdefault("HF_HOME", str(folder / "huggingface"))
    if config.endpoint.api_key_env:
        found[lm_eval.KEY_VARIABLE] = os.environ.get(config.endpoint.api_key_env, "")
    return found


async def _run(folder: Path, config: BenchmarkConfig, timeout_s: float) -> None:
    process = await asyncio.create_subprocess_exec(
        lm_eval.PROGRAM,
        *lm_eval.ARGUMENTS,
        cwd=folder,
        env=_environment(folder, config),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    tail = b""
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await process.stdout.read(_KEPT):
                tail = (tail + piece)[-_KEPT:]
            code = await process.wait()
    except TimeoutError:
        raise DatasetError(
            f"quality.lm_eval: no result within quality.timeout, {timeout_s:g} s"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code:
        last = one_line(tail.decode("utf-8", "replace").strip().rpartition("\n")[2], limit=400)
        raise DatasetError(f"quality.lm_eval: {lm_eval.PROGRAM} ended with code {code}: {last}")


def _result(
    folder: Path, tasks: LmEvalTasks, config: BenchmarkConfig, users: int
) -> tuple[QualityResult, list[Answer]]:
    quality = config.quality
    assert quality is not None
    files = list(folder.glob(lm_eval.RESULTS))
    if len(files) != 1:
        raise ValueError(f"lm_eval left {len(files)} files of results; expected 1")
    found = lm_eval.read_results(files[0].read_bytes(), tasks)
    answers: list[Answer] = []
    names: list[str] = []
    for each in found.scores:
        samples = list(folder.glob(lm_eval.samples_of(each.task)))
        if len(samples) != 1:
            raise ValueError(f"{each.task} is a group of tasks; name its tasks in quality.lm_eval")
        lines = samples[0].read_bytes().splitlines()
        answers += lm_eval.read_samples(lines, each, first=len(answers))
        names += [each.task] * (len(answers) - len(names))
    kind = (tasks.model_dump(mode="json"), found.tool, dict(found.hashes))
    result = score(
        names,
        answers,
        file=quality.source,
        sha256=hashlib.sha256(msgspec.json.encode(kind, order="sorted")).hexdigest(),
        concurrency=users,
        min_score=quality.min_score,
    )
    return result, answers
