"""A run whose server is killed during the load and restarts."""

import itertools
import json
from datetime import datetime
from pathlib import Path

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.running_command import FINISHED, Command, artifacts

CONFIG = """
endpoint: {{url: "{url}", model: mock, streaming: true}}
load: {{request_rate: 40, duration: 16s, grace_period: 5s}}
dataset: {{input_tokens: {{mean: 20}}, output_tokens: {{mean: 8}}}}
events:
  - {event}
"""


def command_of(folder: Path, url: str, event: str) -> Command:
    within = folder / "run"
    within.mkdir()
    config = folder / "events.yaml"
    config.write_text(CONFIG.format(url=url, event=event))
    return Command(within, None, "--config", str(config))


def test_killed_server_is_measured_until_it_is_back(tmp_path: Path) -> None:
    with running(MockServerConfig(ttft="5ms", itl="1ms", tokens=8, respawn="3s")) as server:
        command = command_of(tmp_path, server.url, "{at: 10s, do: kill}")
        results = command.finish()["results"]
    assert command.code in FINISHED, command.errors
    own = results["aiperf_svc"]
    (event,) = own["events"]
    assert event["is_verified"], event
    assert (event["do"], event["evidence"]) == ("kill", "gone from /proc")
    assert 10 <= event["begin_s"] < 16
    assert event["lost"]["refused"] > 0
    assert event["longest_gap_s"] >= 3
    # Tokens come at least as often as requests end, however often that is on a busy machine.
    lines = (artifacts(command.folder) / "profile_export.jsonl").read_text().splitlines()
    ended_s = [json.loads(line)["metadata"]["request_end_ns"] / 1e9 for line in lines]
    start_s = datetime.fromisoformat(results["start_time"]).timestamp()
    begin_s = start_s + event["begin_s"]
    before_s = sorted([start_s, *(each for each in ended_s if each < begin_s), begin_s])
    usual_s = max(after - before for before, after in itertools.pairwise(before_s))
    assert event["usual_gap_s"] < usual_s + 0.1
    assert event["throughput_recovery_s"] is None  # less than 30 s were left
    assert results["event_lost_requests"]["avg"] == sum(event["lost"].values())
    assert "events" not in {reason["check"] for reason in own["reasons"]}
    page = (artifacts(command.folder) / "report.html").read_text()
    assert "Requests by due time" in page
    assert 'class="band event"' in page
    assert "Events, by due time of the requests" in command.errors
    command.assert_nothing_is_left()


def test_event_for_unknown_process_is_refused_before_load(tmp_path: Path) -> None:
    with running(MockServerConfig(truth=True)) as server:
        event = "{at: 10s, do: kill, process: no-such-server, foreign: true}"
        command = command_of(tmp_path, server.url, event)
        command.finish()
        assert server.truth()["requests"] == 0
    assert command.code == ExitCode.BAD_CONFIG
    assert "events: number 1 (kill): no process is named 'no-such-server'" in command.errors
    assert not (command.folder / "artifacts").exists()
