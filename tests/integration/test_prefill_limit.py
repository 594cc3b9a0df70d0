"""A limit on requests that wait for their first token, compared with the server's own record."""

import itertools
import json
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.inference.entry_cache import EntryCache
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.resolved_target import resolve_target
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.credits import CreditsGranted, PhaseOpened, PhaseStopped
from aiperf_svc.protocol.messages.dataset import Conversation, DatasetBlock, Turn
from aiperf_svc.protocol.records import Flag
from aiperf_svc.services.generators import PrefillGenerator
from tests.support.in_one_loop import config, lines, results_of, server, stack, talks


def max_in_prefill(rows: list[dict[str, Any]], folder: Path) -> int:
    """Return the maximum number of requests that had arrived at the server and whose first token
    had not arrived here, both according to kernel stamps."""
    edges = [(row["arrival_wall_ns"], 1) for row in rows]
    for line in lines(folder / "artifacts"):
        ttft_ns = line["metrics"]["time_to_first_token"]["value"] * 1e6
        edges.append((line["metadata"]["request_start_ns"] + ttft_ns, -1))
    most = now = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


async def test_prefill_limit_bounds_waiting_requests(tmp_path: Path) -> None:
    # The role arrives immediately and is not a token. A busy machine takes some milliseconds from a
    # first token to the next request.
    with server(ttft="200ms", itl="15ms", tokens=30, role_chunk=True) as mock:
        settings = config(mock.url, concurrency=24, requests=42, prefill_concurrency=3)
        summary = await results_of(settings, tmp_path)
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["completed"] == truth["completed"] == 42
    assert accounts["violations"] == []
    assert max_in_prefill(truth["rows"], tmp_path) == 3
    # Decoding (435 ms) is not limited, so more requests are in flight than in prefill. But three at
    # a time for 200 ms are fewer than 24 users with 635 ms need, so users wait for a slot.
    assert 6 < truth["max_in_flight"] <= 24
    assert summary["capped_request_count"]["avg"] > 20
    # The limit does not apply to requests in flight, but the slots are full.
    assert "concurrency_achievement" not in summary
    checks = json.loads((tmp_path / "artifacts" / "verdict.json").read_text())["checks"]
    (held,) = (check for check in checks if check["check"] == "concurrency")
    assert held["measured"] < 0.3


async def test_prefill_limit_applies_to_open_loop_conversations(tmp_path: Path) -> None:
    dataset = talks(tmp_path, {"text": "a"}, {"text": "b"}, {"text": "c"}, count=30)
    with server(ttft="20ms", itl="5ms", tokens=10) as mock:
        load = {"request_rate": 200, "requests": 90, "prefill_concurrency": 4}
        settings = config(mock.url, dataset=dataset, **load)
        settings["workers"] = {"min": 2}
        async with stack(settings, tmp_path, workers=2) as run:
            assert run.topology.workers == 2
            summary = await run.results()
        truth = mock.truth(rows=True)
    accounts = summary["aiperf_svc"]["accounts"]
    assert truth["completed"] == accounts["requests_sent"] == 90
    assert (accounts["completed"], accounts["violations"]) == (30, [])
    assert 2 < max_in_prefill(truth["rows"], tmp_path) <= 4
    # Due requests wait, and the intended latency includes the wait.
    assert summary["intended_time_to_first_token"]["max"] > summary["time_to_first_token"]["max"]


async def test_requests_without_a_first_token_free_their_slot(tmp_path: Path) -> None:
    with server(ttft="10ms", itl="2ms", tokens=20, error_rate=0.3, cut_rate=0.2) as mock:
        load: dict[str, Any] = {"concurrency": 10, "requests": 100, "prefill_concurrency": 2}
        load |= {"cancellation": {"rate": "20%", "delay": "5ms"}, "duration": "20s"}
        summary = await results_of(config(mock.url, **load), tmp_path)
    accounts = summary["aiperf_svc"]["accounts"]
    assert (
        accounts["issued"]
        == 100
        == sum(accounts[name] for name in ("completed", "errored", "abandoned"))
    )
    assert accounts["violations"] == []


async def test_stop_ends_requests_waiting_for_a_slot(tmp_path: Path) -> None:
    dataset = talks(tmp_path, {"text": "a"}, {"text": "b"}, count=30)
    with server(ttft="60ms", tokens=1) as mock:
        load = {"request_rate": 100, "duration": "600ms", "prefill_concurrency": 2}
        summary = await results_of(config(mock.url, dataset=dataset, **load), tmp_path)
        truth = mock.truth()
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    assert accounts["unsent"] > 10
    assert accounts["requests_sent"] == truth["requests"] <= 24


# --- the generator by itself ---------------------------------------------------------------------

HEAD = ("run", "timing-manager", 1)
PAST = 1_000


class NotingClient:
    """Records the requests that it should send."""

    requests_sent = retries = unasked = in_flight = held_back_ns = clock_steps_ns = (
        ended_near_steps
    ) = 0

    def __init__(self) -> None:
        self.sent: list[Request] = []

    def send(self, request: Request) -> None:
        self.sent.append(request)

    def revoke_unwritten(self) -> list[Request]:
        return []

    def preconnect(self, _: int) -> bool:
        return True

    def poll_often(self, _: bool) -> None:
        pass

    def wake_at(self, _: int | None) -> None:
        pass


class TokensOnRequest:
    """Reports a first token for the responses in `come`."""

    def __init__(self) -> None:
        self.come: list[Request] = []

    def has_come(self, request: Request, _: bytearray, **__: int) -> bool:
        return request in self.come

    def forget(self, _: Request) -> None:
        pass


def generator(*, turns: int = 1, **opened: Any) -> tuple[PrefillGenerator, NotingClient, Any]:
    checked = BenchmarkConfig.model_validate(
        config("http://127.0.0.1:1", concurrency=9, requests=1)
    )
    entries = EntryCache(resolve_target(checked), lambda block: None)
    talk = Conversation("c", (Turn(b"{}"),) * turns)
    entries.put(DatasetBlock(*HEAD, 0, 1, 1, 0, 0, (talk,), bytes(4)))
    tokens: Any = TokensOnRequest()
    made = PrefillGenerator(
        first_tokens=tokens,
        run_id="run",
        entries=entries,
        is_streaming=True,
        connection_limit=100,
        to_history=lambda turn, following_turns, request: [([], ()) for _ in following_turns],
        on_starved=lambda: None,
    )
    client = NotingClient()
    made.attach(client)  # type: ignore[arg-type]
    phase = PhaseOpened(*HEAD, Phase.PROFILING, PAST, 0, 0, False, 9, 0, 0, 1)
    made.open_phase(msgspec.structs.replace(phase, prefill_concurrency=2, **opened), 0)
    due = PAST.to_bytes(8, "little") * 50 if opened.get("is_open_loop") else b""
    made.grant(CreditsGranted(*HEAD, Phase.PROFILING, 0, 1, 50, due), 0)
    return made, client, tokens


def read(made: PrefillGenerator, request: Request) -> None:
    """Simulate a read after which the response continues."""
    request.body_offset = 10
    made.on_part(request)


def end(made: PrefillGenerator, request: Request, outcome: Outcome = Outcome.COMPLETED) -> None:
    request.write_wall_ns = request.end_wall_ns = PAST
    made.on_end(request, outcome)


def test_first_token_frees_slot_for_next_user() -> None:
    made, client, tokens = generator()
    assert len(client.sent) == 2
    first = client.sent[0]
    read(made, first)
    assert len(client.sent) == 2
    assert first.kept is not None
    tokens.come.append(first)
    read(made, first)
    assert len(client.sent) == 3
    assert first.kept is None
    end(made, first)  # its slot now belongs to another request
    assert len(client.sent) == 3
    assert client.sent[2].flags & Flag.CAPPED
    assert not first.flags & Flag.CAPPED


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.ERRORED, Outcome.ABANDONED])
def test_end_without_a_first_token_frees_the_slot(outcome: Outcome) -> None:
    made, client, _ = generator()
    end(made, client.sent[0], outcome)
    made.on_timer(time_ns())
    assert len(client.sent) == 3


def test_each_turn_needs_a_slot_and_keeps_history() -> None:
    made, client, tokens = generator(turns=2)
    first, second = client.sent
    tokens.come.append(first)
    read(made, first)
    assert first.kept is not None
    end(made, first)  # its next turn waits because two others hold the slots
    assert len(client.sent) == 3
    tokens.come.append(second)
    read(made, second)
    assert [(request.index, request.turn) for request in client.sent[3:]] == [(0, 1)]
    assert client.sent[3].flags & Flag.CAPPED


def test_turn_with_a_free_slot_has_not_waited() -> None:
    made, client, tokens = generator(turns=3, concurrency=3)
    first, second = client.sent
    tokens.come.append(first)
    read(made, first)
    end(made, first)
    tokens.come.append(second)
    read(made, second)
    waited = client.sent[3]
    tokens.come.append(waited)
    read(made, waited)
    end(made, waited)
    found = client.sent[4]
    assert [(each.index, each.turn) for each in (waited, found)] == [(0, 1), (0, 2)]
    assert [bool(each.flags & Flag.CAPPED) for each in (waited, found)] == [True, False]


def test_turns_count_as_requests_and_conversations_as_credits() -> None:
    made, client, _ = generator(turns=2)
    end(made, client.sent[0])
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.completed, counts.turns_completed) == (0, 1)
    end(made, client.sent[2])
    counts = made.counts(last_seq=0, records_dropped=0)
    assert (counts.completed, counts.turns_completed) == (1, 1)


def test_ramp_slots_are_used_when_they_open() -> None:
    start = time_ns()
    made, client, _ = generator(start_wall_ns=start, prefill_ramp_ns=10**12)
    made.on_timer(start)
    assert len(client.sent) == 1
    made.connect_ahead(start + 5 * 10**11)
    assert len(client.sent) == 2


@pytest.mark.parametrize("is_open_loop", [False, True])
def test_stop_loses_no_credit_and_no_slot(is_open_loop: bool) -> None:
    outcomes = [Outcome.COMPLETED] * 8 + [Outcome.ERRORED, Outcome.ABANDONED]
    for seed in range(100):
        random = Random(seed)
        made, client, tokens = generator(turns=random.choice((1, 3)), is_open_loop=is_open_loop)
        steps_before_stop = random.randrange(120)
        in_prefill: list[Request] = []
        open_now: list[Request] = []
        for step in itertools.count():
            if step == steps_before_stop:
                made.stop(PhaseStopped(*HEAD, Phase.PROFILING, PAST, 2**62), 0)
            in_prefill += client.sent
            open_now += client.sent
            client.sent.clear()
            assert len(in_prefill) <= 2
            if not open_now:
                if made.is_idle:
                    break
                made.on_timer(2**61)
                continue
            request = random.choice(open_now)
            if request in in_prefill:
                in_prefill.remove(request)
                if random.random() < 0.5:
                    tokens.come.append(request)
                    read(made, request)
                    continue
            open_now.remove(request)
            end(made, request, random.choice(outcomes))
        counts = made.counts(last_seq=0, records_dropped=0)
        ended = counts.completed + counts.errored + counts.cancelled + counts.abandoned
        assert (seed, ended + counts.unsent + counts.revoked) == (seed, 50)
