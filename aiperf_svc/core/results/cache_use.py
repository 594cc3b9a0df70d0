"""Computes the use of a server's prefix cache by turn and by conversation, and the turns at which
prompts exceeded the context."""

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.core.datasets.multi_turn import MAX_TURNS
from aiperf_svc.core.results.cache_stats import CacheUse, SessionCache, TurnCache
from aiperf_svc.core.results.inference_result import TurnOverflow
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.domain import metric_formulas as f
from aiperf_svc.domain.metric_catalog import Population
from aiperf_svc.domain.outcomes import ErrorKind, Outcome

TABLE_TURNS = 1_000
"""Maximum turns with separate shares; later turns are counted with the last."""
_SHARES = (10, 50, 90)
Counts = NDArray[np.float64]


def cache_use(*runs: PhaseRows) -> CacheUse | None:
    """Return the cached tokens by turn and by conversation, of one run or of several runs with
    separate conversations. None for single requests, and for servers that do not report cached
    tokens. Uses memory for two numbers per conversation."""
    # Sums of requests, known ones, prompt tokens and cached tokens.
    by_turn = np.zeros((4, TABLE_TURNS))
    sessions = [_add_run(rows, by_turn) for rows in runs]
    last = int(np.flatnonzero(by_turn[0])[-1]) if by_turn[0].any() else 0
    prompt, cached = np.concatenate(sessions, axis=1)
    if not last or not len(prompt):
        return None
    p10, p50, p90 = np.percentile(cached / prompt, _SHARES).tolist()
    return CacheUse(
        turns=tuple(_turn(turn, by_turn[:, turn]) for turn in range(last + 1)),
        sessions=SessionCache(count=len(prompt), p10=p10, p50=p50, p90=p90),
    )


def _add_run(rows: PhaseRows, by_turn: Counts) -> Counts:
    """Add the requests of a run to the sums by turn. Returns the prompt tokens and the cached
    tokens of each conversation for which they are known."""
    by_session = np.zeros((2, 0))
    for done in rows.chunks(Population.COMPLETED):
        turns = np.minimum(done["turn"], TABLE_TURNS - 1)
        by_turn[0] += np.bincount(turns, minlength=TABLE_TURNS)
        cached = f.read_from_cache(done)
        is_known = ~np.isnan(cached)
        if not is_known.any():
            continue
        prompt = done["usage_prompt_tokens"][is_known].astype(np.float64)
        cached, turns = cached[is_known], turns[is_known]
        for index, weights in enumerate((None, prompt, cached), start=1):
            by_turn[index] += np.bincount(turns, weights, TABLE_TURNS)
        sessions = done["index"][is_known].astype(np.int64)
        missing = int(sessions.max()) + 1 - by_session.shape[1]
        if missing > 0:
            by_session = np.pad(by_session, ((0, 0), (0, missing + by_session.shape[1])))
        for index, weights in enumerate((prompt, cached)):
            found = np.bincount(sessions, weights)
            by_session[index, : len(found)] += found
    return by_session[:, by_session[0] > 0]


def context_overflows(rows: PhaseRows) -> tuple[TurnOverflow, ...]:
    """Return the turns at which prompts exceeded the server's context."""
    sent, too_long = np.zeros((2, MAX_TURNS + 1), dtype=np.int64)
    for chunk in rows.chunks():
        tried = chunk.where(chunk["outcome"] != Outcome.UNSENT)
        sent += np.bincount(tried["turn"], minlength=len(sent))
        over = tried.where(tried["error"] == ErrorKind.CONTEXT_OVERFLOW)
        too_long += np.bincount(over["turn"], minlength=len(too_long))
    return tuple(
        TurnOverflow(turn=turn, requests=int(sent[turn]), overflows=int(too_long[turn]))
        for turn in np.flatnonzero(too_long).tolist()
    )


def _turn(turn: int, sums: Counts) -> TurnCache:
    requests, known, prompt, cached = map(int, sums)
    return TurnCache(
        turn=turn, requests=requests, known=known, prompt_tokens=prompt, cached_tokens=cached
    )
