"""Runs of flags or of a stack file on this machine. All checks come before anything is started."""

import argparse
import json
import os
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from aiperf_svc.adapters.datasets.tokenizers import resolve_tokenizer
from aiperf_svc.adapters.host.build import interpreted_notice
from aiperf_svc.adapters.inference.listeners import check_listeners
from aiperf_svc.cli.checks import (
    CheckedFiles,
    checked_trials,
    config_problems,
    local_problems,
    parallel_problems,
)
from aiperf_svc.cli.flag_config import Draft, read_api_key_flag, read_flags, read_stack_draft
from aiperf_svc.cli.options import run_options
from aiperf_svc.config.parameters import is_below
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.secret_names import TARGET_KEY_ENV
from aiperf_svc.config.target import HOST
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.fork_server import ForkServer
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.runner.process_placement import ProcessPlacement, expand_local, run_local
from aiperf_svc.workloads.previews import trial_lists
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.trials import CheckedTrials


def run_flags(args: argparse.Namespace, forks: ForkServer | None) -> int:
    """Run the benchmark of the flags of `profile`; return the exit code."""
    return measure(read_flags(args), args, forks)


def run_stack_file(args: argparse.Namespace, forks: ForkServer | None) -> int:
    """Run the benchmark and mock server of a stack file; return the exit code."""
    draft = read_stack_draft(args)
    config = draft.parse()
    target, inference = config.deployment.target, config.inference
    if (
        inference is None
        or target.kind != "mock"
        or urlsplit(inference.endpoint.url).hostname != HOST
    ):
        return measure(draft, args, forks)
    keys = config.experiment.keys if config.experiment is not None else ()
    if any(each.deployment for each in config.targets) or any(
        is_below(key, "deployment.target") or is_below("deployment.target", key) for key in keys
    ):
        raise ConfigError(
            "--local: the config needs several servers (deployment.target), and a local run has "
            "one mock server; run it on a cluster"
        )
    if args.dry_run:
        draft.data["endpoint"]["url"] = "http://127.0.0.1"  # nothing is started
        return measure(draft, args, forks)
    # Imported here because other runs need none of its modules.
    from aiperf_svc.cli.commands.mock_runs import mock_server_of

    with mock_server_of(target.args) as url:
        draft.data["endpoint"]["url"] = url
        return measure(draft, args, forks)


def measure(draft: Draft, args: argparse.Namespace, forks: ForkServer | None) -> int:
    """Check everything, then run the benchmark on this machine with services that are forks of
    `forks`; return the exit code. Raises ConfigError, and BenchmarkFailed if no server listens at
    the target."""
    options = run_options(args)
    key = read_api_key_flag(draft, args.api_key)
    secrets = {} if key is None else {TARGET_KEY_ENV: key}
    config = draft.parse()

    def problems_here(each: Config) -> list[Problem]:
        found = config_problems(each) + local_problems(each, {**os.environ, **secrets})
        return found + parallel_problems(each)

    trials = checked_trials(config, problems_here, source=draft.source, names=draft.names)
    for secret in (s for each in trials.different for s in workload_of(each).secrets(each)):
        if Service.WORKER in secret.services and secret.variable not in secrets:
            secrets[secret.variable] = os.environ[secret.variable]
    inference = [each.inference for each in trials.different if each.inference is not None]
    files = CheckedFiles(inference)
    if args.dry_run:
        return _show(trials, args, files)
    closed = check_listeners(each.endpoint for each in inference)
    if config.inference is not None and config.inference.events:
        # Imported here because other runs need none of its modules.
        from aiperf_svc.adapters.events.local_processes import LocalServer

        LocalServer(config.inference).check()
    tokenizers = {each.tokenizer.model_dump_json(): each.tokenizer for each in inference}
    notices = [
        *draft.notices,
        closed,
        *files.notices,
        *(resolve_tokenizer(each) for each in tokenizers.values()),
        interpreted_notice(),
    ]
    for notice in filter(None, notices):
        print(f"note: {notice}", file=sys.stderr)

    options = replace(options, secrets=secrets)
    return int(run_local(trials.config, options, trials=trials.members, forks=forks))


def _show(trials: CheckedTrials, args: argparse.Namespace, files: CheckedFiles) -> int:
    """Print the trials or targets of a config; return the exit code."""
    expansion = expand_local(trials.config, trials.members)
    ProcessPlacement(expansion, RunOptions()).prepare(shows_warnings=False)
    config, members, lengths = trials.config, expansion.first.trials, files.replay_ns
    if expansion.is_joint:
        shown = [
            {
                "name": each.name,
                "url": each.where,
                **trial_lists.as_json(each.config, each.trials, lengths),
            }
            for each in expansion.members
        ]
        lines = [f"{len(shown)} targets at the same time, each with its own processes:"]
        lines += [
            f"  {each.name}: {each.where}, "
            f"{trial_lists.headline(each.config, each.trials, lengths)}"
            for each in expansion.members
        ]
        content: dict[str, Any] = {"targets": shown}
    else:
        content = trial_lists.as_json(config, members, lengths)
        lines = trial_lists.as_lines(config, members, lengths)
    shapes = expansion.shapes[expansion.first.name]
    if expansion.is_driven:
        lines.append("one after another, each with its own processes")
    elif len(shapes) > 1:
        lines.append("one after another, each with its own processes:")
        lines += [f"  {trial_lists.shape_title(shapes, number)}" for number in expansion.rounds]
    print(json.dumps(content, default=str) if args.json else "\n".join(lines))
    return int(ExitCode.OK)
