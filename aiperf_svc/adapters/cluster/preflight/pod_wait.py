"""Waits for a pod that checks something."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.watching.startup_failure import (
    IMAGE_STATES,
    StartupFailureDetector,
    pod_problems,
)
from aiperf_svc.domain.foreign_text import one_line

POLL_S = 0.5
UNPLACED_S = 10.0
"""Longest time until a node takes the pod."""
Json = dict[str, Any]


class WaitedPod(msgspec.Struct, frozen=True):
    """A pod as it was wanted, or why it does not become so."""

    pod: Json | None
    failure: str = ""
    is_image_missing: bool = False


async def wait_for_pod(
    cluster: Cluster, path: str, *, until: Callable[[Json], bool], longest_s: float
) -> WaitedPod:
    """Wait until a pod is as wanted, cannot become so, or the time is over. Raises Refused,
    Unreachable."""
    detector = StartupFailureDetector(unschedulable_s=UNPLACED_S)
    end_mono_s = time.monotonic() + longest_s
    while time.monotonic() < end_mono_s:
        pod = await cluster.get(path)
        if until(pod):
            return WaitedPod(pod)
        line = detector.handle([pod], [], now_s=time.monotonic())
        if line:
            problems = pod_problems(pod, UNPLACED_S)
            is_image = any(each.state in IMAGE_STATES for each in problems)
            return WaitedPod(None, line, is_image)
        await asyncio.sleep(POLL_S)
    return WaitedPod(None)


def has_ended(pod: Json) -> bool:
    """Return whether all containers of a pod have ended."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def ended_words(pod: Json) -> str:
    """Return the final message of a pod that has ended."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    ended = statuses[0].get("state", {}).get("terminated") or {}
    said = one_line(ended.get("message") or pod["status"].get("message") or "")
    return said or str(ended.get("reason", "no response"))
