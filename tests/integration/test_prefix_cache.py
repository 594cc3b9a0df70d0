"""A run's share of cached tokens equals the server's actual cache hits."""

from pathlib import Path

import pytest

from aiperf_svc.mock_server.requests import PrefixCache
from aiperf_svc.services import telemetry_reader
from tests.support.in_one_loop import WAIT_S, config, results_of, server, talks

BLOCK = 4
TURNS = 4


def test_only_whole_blocks_from_the_beginning_are_found() -> None:
    cache = PrefixCache(2)
    assert cache.add(list("abcde")) == 0
    assert cache.add(list("abcdx")) == 4
    assert cache.add(list("abxd")) == 2
    assert cache.add(list("xbcd")) == 0
    assert cache.add(list("a")) == 0


@pytest.mark.parametrize("api", ["chat"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_cache_hits_by_turn_equal_the_servers(
    api: str, streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The counters match the run only if a page is read before the load and one after it.
    monkeypatch.setattr(telemetry_reader, "FIRST_PAGES_S", WAIT_S)
    monkeypatch.setattr(telemetry_reader, "LAST_PAGE_S", WAIT_S)
    turns = [{"text": " ".join(f"w{turn}-{n}" for n in range(10))} for turn in range(TURNS)]
    dataset = talks(tmp_path, *turns, count=1)
    with server(tokens=6, prefix_cache_block=BLOCK, ttft="2ms") as mock:
        settings = config(mock.url, dataset=dataset, concurrency=1, requests=2 * TURNS)
        settings["endpoint"] |= {"type": api, "streaming": streaming}
        settings["telemetry"] = {"server_metrics": [mock.url], "interval": "100ms"}
        summary = await results_of(settings, tmp_path)
    own = summary["aiperf_svc"]
    # Turn n has 10 (n + 1) + 6 n words. All whole blocks of the second conversation are cached.
    words = [10 * (turn + 1) + 6 * turn for turn in range(TURNS)]
    first = [0, *(before - before % BLOCK for before in words[:-1])]
    second = [count - count % BLOCK for count in words]
    assert [
        (turn["requests"], turn["prompt_tokens"], turn["cached_tokens"])
        for turn in own["cache"]["turns"]
    ] == [(2, 2 * w, a + b) for w, a, b in zip(words, first, second, strict=True)]
    share = (sum(first) + sum(second)) / (2 * sum(words))
    assert summary["cached_token_share"]["avg"] == pytest.approx(share)
    assert summary["cached_token_coverage"]["avg"] == 1.0
    checks = {check["check"]: check for check in own["system"]["checks"]}
    assert checks["cached_tokens_agree"]["measured"] == pytest.approx(0.0, abs=1e-9)
    assert "responses" in checks["cached_tokens_agree"]["text"]
