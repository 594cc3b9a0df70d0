"""Logs a finished run to Weights & Biases with its own library."""

import os
from collections.abc import Mapping
from typing import Final

from aiperf_svc.adapters.trackers.finished_run import FinishedFolder
from aiperf_svc.config.artifacts import Wandb
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

KEY_VARIABLE: Final = "WANDB_API_KEY"
MODE_VARIABLE: Final = "WANDB_MODE"
CONNECT_S: Final = 30.0
"""Timeout of the service: the results wait for it."""


def lacks_key(environ: Mapping[str, str]) -> bool:
    """Return whether the library would prompt for a key: it is online and has none."""
    is_online = environ.get(MODE_VARIABLE, "online") == "online"
    return is_online and not environ.get(KEY_VARIABLE)


def send(finished: FinishedFolder, into: Wandb) -> str:
    """Create a run with all data; return its location. Its local files are in the artifact folder,
    where `wandb sync` finds those of an offline run. Raises EnvironmentProblem."""
    if lacks_key(os.environ):
        raise EnvironmentProblem(f"{KEY_VARIABLE} is not set in the environment")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        run = wandb.init(
            project=into.project,
            entity=into.entity,
            name=into.run_name or finished.name,
            tags=[*into.tags, *_short(finished.tags)],
            config=dict(finished.params),
            dir=str(finished.folder),
            reinit="finish_previous",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                init_timeout=CONNECT_S,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )
        run.summary.update(finished.metrics)
        artifact = wandb.Artifact(f"run-{run.id}", type="aiperf-run")
        for path in finished.files(into.files):
            artifact.add_file(str(path), name=path.relative_to(finished.folder).as_posix())
        run.log_artifact(artifact)
        run.finish(exit_code=int(finished.was_cancelled))
        where = run.url or run.settings.sync_dir
    except (wandb.Error, OSError) as error:
        raise EnvironmentProblem(f"Weights & Biases: {one_line(str(error))}") from error
    finally:
        wandb.teardown()
    return f"Weights & Biases run {where}"


def _short(tags: Mapping[str, str]) -> list[str]:
    """Return tags as `key:value`, shortened to the service's limit of 64 characters."""
    return [f"{name.partition('.')[2]}:{value}"[:64] for name, value in tags.items()]
