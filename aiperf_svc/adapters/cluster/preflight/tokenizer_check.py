"""Checks whether the hub has the tokenizer that the pods will request, as far as the runner can
see."""

import asyncio

from aiperf_svc.adapters.datasets import hub_files
from aiperf_svc.adapters.datasets.tokenizers import RUNNER_RETRY_S, hub_name
from aiperf_svc.config.workload import Config
from aiperf_svc.core.cluster.check import Check, State
from aiperf_svc.domain.foreign_text import one_line

NAME = "tokenizer"


async def check_tokenizer(config: Config) -> Check | None:
    """Run the check; None if nothing is fetched from the hub.

    It fails only if the hub refuses and the pods have no other source: a user's image may hold the
    tokenizer, and pods may reach a hub that the runner does not.
    """
    tokenizer = config.inference.tokenizer if config.inference is not None else None
    name = hub_name(tokenizer) if tokenizer is not None else None
    if tokenizer is None or name is None:
        return None
    hub = hub_files.hub_address()
    try:
        await asyncio.to_thread(
            hub_files.find_on_hub, name, tokenizer.revision, timeout_s=RUNNER_RETRY_S
        )
    except hub_files.HubRefused as error:
        state: State = "failed" if config.deployment.image.name is None else "warning"
        return Check(
            NAME,
            state,
            f"{hub} does not give {name!r}: {one_line(str(error))}",
            "correct tokenizer.name, or build an image that holds the tokenizer and give its path",
        )
    except hub_files.HubUnreachable as error:
        why = f"{hub} cannot be reached from here: {one_line(str(error))}"
        return Check(NAME, "not checked", f"{why}; the pods ask it for {name!r} themselves")
    return Check(NAME, "ok", f"{hub} has {name!r}; the pods fetch it")
