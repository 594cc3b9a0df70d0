"""Reads the objects that the Pulumi program would create, without Pulumi's engine or a cluster."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.cluster.ownership import HOLDER
from aiperf_svc.adapters.pulumi.error_text import causes_in, in_few_lines
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.process_environment import without_working_folder

TIMEOUT_S = 120.0
"""Timeout of the program; generous for a busy machine."""


async def read_manifests(
    infra: Path, *, stack: str, config: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Json, ...]:
    """Return the manifests of a stack. `config` holds the values of its configuration, with secrets
    replaced. Raises EnvironmentProblem if the program fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(infra / "manifests.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Without a holder in its config, the program would look for other holders in the cluster.
        env={**without_working_folder(environ), HOLDER: "preflight"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            request = json.dumps({"stack": stack, "config": dict(config)}).encode()
            out, errors = await process.communicate(request)
    except TimeoutError as error:
        raise EnvironmentProblem(f"the program took more than {TIMEOUT_S:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise EnvironmentProblem(in_few_lines(causes_in(errors.decode(errors="replace"))))
    return tuple(json.loads(out))
