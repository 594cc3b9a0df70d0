"""A server's prefix cache in results: cached shares by turn and by conversation.

All shares are ratios of sums, cached tokens over prompt tokens of the same requests. A mean of the
requests' ratios would give a short first turn the weight of a long last one. The runner imports
this module without NumPy.
"""

import msgspec

from aiperf_svc.domain.number_text import number
from aiperf_svc.domain.shown_table import ShownTable


class TurnCache(msgspec.Struct, frozen=True, kw_only=True):
    """The cached tokens of all requests with the same turn number."""

    turn: int
    """From 0."""
    requests: int
    """Completed requests."""
    known: int
    """Completed requests whose cached tokens are known."""
    prompt_tokens: int
    cached_tokens: int
    """Sums over these requests."""

    @property
    def share(self) -> float | None:
        """Cached tokens over prompt tokens; None if none are known."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class SessionCache(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of the conversations' shares, each a ratio of sums over its turns."""

    count: int
    p10: float
    p50: float
    p90: float

    @property
    def text(self) -> str:
        shares = f"p10 {self.p10:.1%}, p50 {self.p50:.1%}, p90 {self.p90:.1%}"
        return f"Cached share of {self.count:,} conversations: {shares}"


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the server's prefix cache in a run of conversations."""

    turns: tuple[TurnCache, ...]
    sessions: SessionCache


MAX_LINES = 12
"""Maximum lines of a table with one line per turn."""


def cache_tables(use: CacheUse | None) -> list[ShownTable]:
    """Return the table by turn; empty without conversations."""
    if use is None:
        return []
    rows = []
    for name, total in turn_ranges(use):
        counts = (total.requests, total.prompt_tokens, total.cached_tokens)
        rows.append([name, *map(number, counts), percent(total.share)])
    notes = [use.sessions.text]
    requests = sum(each.requests for each in use.turns)
    known = sum(each.known for each in use.turns)
    if known < requests:
        notes.append(f"{percent(known / requests)} of the requests report cached tokens")
    columns = ("turn", "requests", "prompt tokens", "cached tokens", "share")
    return [ShownTable("Prefix cache by turn", columns, rows, notes, texts=())]


def turn_ranges(use: CacheUse) -> list[tuple[str, TurnCache]]:
    """Return the lines of a table: turns from 1, such as `3` or `5-8`, and their sums. Each turn
    has a line; many turns are grouped into 1, 2, 3-4, 5-8 and so on."""
    turns = use.turns
    if len(turns) <= MAX_LINES:
        return [(str(each.turn + 1), each) for each in turns]
    lines, begin, end = [], 0, 1
    while begin < len(turns):
        some = turns[begin:end]
        name = str(begin + 1) if len(some) == 1 else f"{begin + 1}-{begin + len(some)}"
        total = TurnCache(
            turn=begin,
            requests=sum(each.requests for each in some),
            known=sum(each.known for each in some),
            prompt_tokens=sum(each.prompt_tokens for each in some),
            cached_tokens=sum(each.cached_tokens for each in some),
        )
        lines.append((name, total))
        begin, end = end, 2 * end
    return lines


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
