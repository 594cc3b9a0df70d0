"""The files that describe a failed stack."""

from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from aiperf_svc.adapters.cluster import evidence
from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.evidence import (
    container_lines,
    described,
    event_line,
    is_fine,
    save_evidence,
)
from aiperf_svc.domain.errors import EnvironmentProblem

HOSTILE = "\x1b[2J\x9b2J\u202e\x07[bold]" + "long " * 10_000


def _pod(**container: Any) -> dict[str, Any]:
    statuses = [{"name": "main", "image": "i:1", "restartCount": 0, "ready": True, **container}]
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def test_a_secret_is_described_without_its_values() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s", "annotations": {"last-applied": "hunter2"}, "managedFields": []},
        "data": {"token": "aHVudGVyMg=="},
        "stringData": {"plain": "hunter2"},
    }
    text = described(secret)
    assert "hunter2" not in text
    assert "aHVudGVyMg" not in text
    assert yaml.safe_load(text)["data"] == {"token": "(hidden)"}


def test_other_objects_are_described_whole() -> None:
    config = {"kind": "ConfigMap", "metadata": {"name": "c", "annotations": {"a": "b"}}, "data": {}}
    assert yaml.safe_load(described(config)) == config


def test_event_is_one_line_with_its_last_time() -> None:
    event = {
        "metadata": {},
        "type": "Warning",
        "reason": "BackOff",
        "message": "Back-off\nrestarting",
        "involvedObject": {"kind": "Pod", "name": "p"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 3,
    }
    assert event_line(event) == (
        "2026-01-01T00:00:00Z  Warning  BackOff  Pod/p  x3  Back-off restarting\n"
    )


def test_container_shows_its_state_and_the_one_before() -> None:
    ended = {"terminated": {"exitCode": 7, "reason": "Error"}}
    text = container_lines(_pod(state={"running": {}}, lastState=ended, restartCount=2))
    assert text.splitlines() == [
        "p  Running  node n",
        "    main  ready=True  restarts=2  i:1",
        "        running:",
        "        before that terminated: exitCode=7, reason=Error",
    ]


def test_only_a_ready_pod_without_restarts_is_fine() -> None:
    assert is_fine(_pod())
    assert not is_fine(_pod(ready=False))
    assert not is_fine(_pod(restartCount=1))
    assert not is_fine({"metadata": {"name": "p"}, "status": {}})


def test_container_messages_are_sanitised_and_bounded() -> None:
    ended = {"terminated": {"exitCode": 7, "message": HOSTILE}}
    pod = _pod(state=ended, lastState=ended)
    pod["status"]["message"] = HOSTILE
    event = {"metadata": {}, "message": HOSTILE, "involvedObject": {}}
    for text in (container_lines(pod), event_line(event)):
        assert all(line.isprintable() for line in text.splitlines())
        assert r"\x1b[2J" in text
        assert len(text) < 10_000


async def test_saved_logs_have_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = _pod()

    async def no_catalog(_: Cluster) -> None:
        raise EnvironmentProblem("not asked")

    monkeypatch.setattr(evidence, "read_catalog", no_catalog)

    class Api:
        async def get(self, path: str, **_: str) -> dict[str, Any]:
            return {"items": [pod] if path.endswith("/pods") else []}

        async def text(self, path: str, **_: str) -> str:
            return "first\t1\n\x1b]0;title\x07second\n"

    await save_evidence(cast(Cluster, Api()), namespace="n", stack="s", folder=tmp_path)
    saved = (tmp_path / "logs" / "p.main.log").read_text()
    assert saved == "first\t1\n\\x1b]0;title\\x07second\n"
