"""Checks of a config beyond its models, all before anything is started: for its workload, for this
machine, of its trials, and of its dataset files."""

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from aiperf_svc.adapters.datasets.tokenizers import existing_path
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import is_path
from aiperf_svc.config.endpoint import Tls
from aiperf_svc.config.load_config import refusal, target_configs
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.trials import (
    CheckedTrials,
    TrialConfig,
    refuse_trials,
    trial_configs,
    trial_name,
)
from aiperf_svc.workloads.workload import NeededFile

if TYPE_CHECKING:
    from aiperf_svc.adapters.datasets.checks import CheckedFile
    from aiperf_svc.adapters.datasets.files import Watch


_CLEAR_LINE = "\x1b[K"
"""Escape sequence that clears the rest of a terminal's line."""
SHOWN_EVERY_S = 0.5
"""Interval between progress updates. A file that is read faster shows no progress."""


def config_problems(config: Config) -> list[Problem]:
    """Return the problems of a config that do not depend on where it runs."""
    return workload_of(config).config_problems(config)


def cluster_problems(config: Config) -> list[Problem]:
    """Return the problems of a config that runs on a cluster."""
    workload = workload_of(config)
    return workload.config_problems(config) + workload.cluster_problems(config)


def local_problems(config: Config, environ: Mapping[str, str] = os.environ) -> list[Problem]:
    """Return the problems of running the config on this machine."""
    needs = workload_of(config).local_needs(config)
    found = [problem for file in needs.files for problem in _file_problems(file)]
    if not found and needs.authorities is not None:
        found += _authority_problems(needs.authorities)
    found += [
        Problem(key, f"needs another package: pip install 'aiperf-svc[{extra}]'")
        for key, module, extra in needs.modules
        if find_spec(module) is None
    ]
    if is_path(needs.tokenizer) and existing_path(needs.tokenizer) is None:
        text = "no such file; expected a tokenizer.json or a folder that holds one"
        found.append(Problem("tokenizer.name", f"{needs.tokenizer!r}: {text}"))
    for key, name, remedy in needs.variables:
        if not environ.get(name):
            text = f"the environment variable {name!r} is not set"
            found.append(Problem(key, text + (f"; {remedy}" if remedy else "")))
    found += _artifact_problems(config.artifacts, environ)
    path = needs.path if needs.path is not None else environ.get("PATH")
    for name, remedy, key in needs.programs:
        if shutil.which(name, path=path) is None:
            text = f"needs {name}, which is not on this machine; {remedy}"
            found.append(Problem(key, text if config.inference else f"{config.kind}: {text}"))
    return found + list(needs.problems)


def _file_problems(file: NeededFile) -> list[Problem]:
    path, text = Path(file.path), ""
    if path.is_dir() and not file.may_be_folder:
        or_pool = " (or kind random_pool)" if file.key == "dataset.file" else ""
        text = f"is a folder; expected a file{or_pool}"
    elif path.is_dir():
        pass
    elif not path.is_file():
        text = "not a regular file" if path.exists() else "no such file"
    elif not os.access(path, os.R_OK):
        text = "not readable by this user"
    return [Problem(file.key, f"{file.path!r}: {text}")] if text else []


def _authority_problems(tls: Tls) -> list[Problem]:
    from aiperf_svc.adapters.inference.resolved_target import tls_context

    try:
        tls_context(tls)
    except ConfigError as error:
        key, _, text = str(error).partition(": ")
        return [Problem(key, text)]
    return []


def _artifact_problems(artifacts: Artifacts, environ: Mapping[str, str]) -> list[Problem]:
    """Return what this machine lacks for uploading the results and sending them to trackers."""
    found = []
    if artifacts.s3 is not None:
        if not uploads.has_library():
            text = f"needs the package {uploads.LIBRARY!r}: {uploads.INSTALL}"
            found.append(Problem("artifacts.s3", text))
        if missing := uploads.missing_keys(environ):
            text = f"{' and '.join(missing)}: not set in the environment; the upload needs them"
            found.append(Problem("artifacts.s3", text))
        if not found and (why := uploads.bucket_problem(artifacts.s3, environ)):
            bucket = f"{artifacts.s3.url}{artifacts.s3.at_endpoint}"
            found.append(Problem("artifacts.s3", f"{bucket} cannot store the results: {why}"))
    return found + tracker_problems(artifacts, environ)


def tracker_problems(artifacts: Artifacts, environ: Mapping[str, str]) -> list[Problem]:
    """Return what this machine lacks for the run's trackers and its webhook."""
    found = []
    if artifacts.webhook is not None:
        from aiperf_svc.adapters.trackers import webhook

        if text := webhook.problem(artifacts.webhook, environ):
            found.append(Problem("artifacts.webhook", text))
    if artifacts.mlflow is None and artifacts.wandb is None:
        return found
    from aiperf_svc.adapters.trackers.sending import problems

    return found + [Problem(key, text) for key, text in problems(artifacts, environ)]


def parallel_problems(config: Config) -> list[Problem]:
    """Return the problems of running an experiment's shapes in parallel on this machine."""
    experiment = config.experiment
    if experiment is None or experiment.parallel in (1, "auto"):
        return []
    text = (
        f"{experiment.parallel}: measurements at the same time on one machine would disturb each "
        "other; leave it out, or run on a cluster"
    )
    return [Problem("experiment.parallel", text)]


def checked_trials(
    config: Config,
    check: Callable[[Config], list[Problem]],
    *,
    source: str,
    names: Mapping[str, str] | None = None,
) -> CheckedTrials:
    """Check a config and each distinct config of its trials and targets, and return the trials.

    `check` returns the problems of one config. Raises ConfigError with the problems of the config,
    or with the trials or the target that have problems.
    """
    if problems := check(config):
        raise refusal(problems, source, names=names)
    members, different = _checked_members(config, check, names)
    if targets := target_configs(config):
        different = []
    for target in targets:
        if problems := check(target.config):
            raise refusal(problems, f"target {target.name}", names=names)
        try:
            different += _checked_members(target.config, check, names)[1]
        except ConfigError as error:
            raise ConfigError(f"target {target.name}: {error}") from error
    return CheckedTrials(config, members, tuple(different))


def _checked_members(
    config: Config,
    check: Callable[[Config], list[Problem]],
    names: Mapping[str, str] | None,
) -> tuple[tuple[TrialConfig, ...], list[Config]]:
    """Return the trials of a config and their distinct configs. Raises ConfigError with the trials
    that have problems."""
    members = trial_configs(config, names=names)
    found = {id(each.config): each for each in members}
    errors = [
        str(refusal(problems, trial_name(each.trial.parameters), names=names))
        for each in found.values()
        if config.experiment is not None and (problems := check(each.config))
    ]
    refuse_trials(errors, len(found))
    return members, [each.config for each in found.values()]


class CheckedFiles:
    """The dataset files of several configs. Each file is read once."""

    def __init__(self, configs: Iterable[BenchmarkConfig]) -> None:
        """Raises DatasetError with the file and line."""
        self._files: dict[str, CheckedFile] = {}
        for config in configs:
            if config.quality is not None and config.quality.file is not None:
                from aiperf_svc.adapters.inference.quality_requests import read_gate

                read_gate(config)
            dataset = config.dataset
            # The sizes of images and audio are checked too.
            is_read = dataset.file or dataset.images.number or dataset.sounds.number
            if is_read and _key(config) not in self._files:
                # Imported here because it imports numpy, and most runs have no file to read.
                from aiperf_svc.adapters.datasets.checks import check_dataset

                with shown_reading(str(dataset.file)) as watch:
                    self._files[_key(config)] = check_dataset(config, watch)

    @property
    def notices(self) -> list[str]:
        """Notices for the user about the files."""
        return [found.notice for found in self._files.values() if found.notice]

    def replay_ns(self, config: BenchmarkConfig) -> int | None:
        """Return the length of a fixed schedule in whole seconds; None if it is unknown."""
        found = self._files.get(_key(config))
        if found is None or found.replay_ns is None:
            return None
        return math.ceil(found.replay_ns / config.load.replay_speedup / SECOND_NS) * SECOND_NS


@contextmanager
def shown_reading(name: str) -> Iterator["Watch"]:
    """Show on a terminal how much of a file has been read, in a line that is removed at the end."""
    shown_s = monotonic() if sys.stderr is not None and sys.stderr.isatty() else math.inf
    is_shown = False

    def watch(share: float) -> None:
        nonlocal shown_s, is_shown
        if monotonic() - shown_s >= SHOWN_EVERY_S:
            shown_s, is_shown = monotonic(), True
            text = one_line(f"reading {name}: {share:.0%}")
            print(f"\r{text}{_CLEAR_LINE}", end="", file=sys.stderr, flush=True)

    try:
        yield watch
    finally:
        if is_shown:
            print(f"\r{_CLEAR_LINE}", end="", file=sys.stderr, flush=True)


def _key(config: BenchmarkConfig) -> str:
    """Return a key of everything that the content of a dataset depends on, without the speed."""
    at_own_speed = config.load.model_copy(update={"replay_speedup": 1.0})
    return config.model_copy(update={"load": at_own_speed}).model_dump_json(
        include={"dataset", "load", "endpoint"}
    )
