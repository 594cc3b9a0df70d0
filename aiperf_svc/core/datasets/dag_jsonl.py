"""Reads agent sessions in AIPerf's `dag_jsonl`: one session per line, which may start others.

    {"session_id": "root", "turns": [
        {"messages": [...], "max_tokens": 50, "spawns": ["child"], "delay": 200}, ...]}

A turn has `messages`, `model`, `max_tokens`, `tools`, `extra` (members of the body) and `delay`
(milliseconds after what it waits for). After its response,

    spawns   start other sessions with their own history; `{"children": [...], "join_at": 3}`
             sets the turn that waits for them, by default the next one
    forks    start sessions with this one's history and end it; with `{"child": ..., "background":
             true}` it continues and does not wait for them

`pre_session_spawns` start with the session. An `orchestrator` sends nothing itself: it starts its
`spawns`, again in each of its `rounds`, each of which waits for the previous one and a think time.
Sessions that no other session starts are the roots of trees.

`context_mode` defines a prompt: the messages of all turns so far with the live responses between
them (`deltas_without_responses`, the default), without them since the file contains responses
(`deltas_with_responses`), or those of the turn alone (`message_array_with_responses`).
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from aiperf_svc.core.datasets.base import MS_NS, Lines, Purpose, decoded, generator
from aiperf_svc.core.datasets.fields import MAX_DELAY_MS
from aiperf_svc.core.datasets.session_trees import (
    Message,
    ResponseOf,
    TracedTree,
    TreeRequest,
    checked_tree,
    message_problem,
)
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.protocol.messages.dataset import PlannedRequest, Stream

EXPECTED = (
    'an object such as {"session_id": "a", "turns": [{"messages": [{"role": "user", "content": '
    '"Hello"}], "spawns": ["b"]}]}'
)
MAX_SIGMA = 10.0
"""Maximum of a lognormal distribution, whose 84th percentile is then 22,000 medians."""
_Mode = Literal["deltas_without_responses", "deltas_with_responses", "message_array_with_responses"]


class _Fork(msgspec.Struct, forbid_unknown_fields=True):
    child: str
    background: bool = False


class _Spawn(msgspec.Struct, forbid_unknown_fields=True):
    children: list[str]
    join_at: int | None = None


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[Json]
    model: str = ""
    max_tokens: int | None = None
    tools: list[Json] | None = None
    extra: Json | None = None
    forks: list[str | _Fork] = []
    spawns: list[str | _Spawn] = []
    delay: float = 0.0


class _Round(msgspec.Struct, forbid_unknown_fields=True):
    spawns: list[str]
    think_time_ms: float | None = None


class _Session(msgspec.Struct, forbid_unknown_fields=True):
    session_id: str
    turns: list[_Turn] = []
    context_mode: _Mode = "deltas_without_responses"
    pre_session_spawns: list[str] = []
    orchestrator: bool = False
    spawns: list[str] = []
    rounds: int | list[_Round] | None = None
    think_time_ms: float | None = None
    think_time_sigma: float | None = None
    think_time_min_ms: float | None = None
    think_time_max_ms: float | None = None
    place: str = ""


_decoder = msgspec.json.Decoder(_Session)


class DagSessions:
    """The sessions of a file, and the trees that they form."""

    def __init__(self, lines: Lines, source: str, *, seed: int = 0) -> None:
        """`seed` determines the drawn think times. Raises DatasetError that names file and
        line."""
        self._sessions: dict[str, _Session] = {}
        self._seed = seed
        session: _Session
        for place, session in decoded(lines, source, _decoder, expected=EXPECTED):
            session.place = f"{place}: session {session.session_id!r}"
            if session.session_id in self._sessions:
                raise DatasetError(f"{session.place}: a second one with this `session_id`")
            self._sessions[session.session_id] = session
        started: dict[str, str] = {}
        for session in self._sessions.values():
            _check(session)
            for child in _children(session):
                self._check_child(session, child, started)
        self.roots = [name for name in self._sessions if name not in started]
        """Names of the root sessions, which no other session starts."""
        self._check_cycles(started)

    def _check_child(self, session: _Session, child: str, started: dict[str, str]) -> None:
        if child not in self._sessions:
            raise DatasetError(
                f"{session.place}: starts {child!r}, and no line has this `session_id`"
            )
        other = started.setdefault(child, session.session_id)
        is_again = other == session.session_id and isinstance(session.rounds, int)
        if not is_again and list(_children(session)).count(child) > 1:
            raise DatasetError(
                f"{session.place}: starts {child!r} twice; give each its own session"
            )
        if other != session.session_id:
            raise DatasetError(
                f"{session.place}: starts {child!r}, which {other!r} starts too; expected one"
            )

    def _check_cycles(self, started: Mapping[str, str]) -> None:
        for name in self._sessions:
            path, at = [name], name
            while at in started:
                at = started[at]
                path.append(at)
                if at == name:
                    raise DatasetError(
                        f"{self._sessions[name].place}: a cycle: "
                        f"{' is started by '.join(map(repr, path))}"
                    )
                if len(path) > len(self._sessions):
                    break  # A cycle without this session is reported for its members.

    def trees(self) -> Iterator[TracedTree]:
        for name in self.roots:
            yield self.tree(name)

    def tree(self, root: str) -> TracedTree:
        builder = _Builder(self._sessions, self._seed)
        try:
            builder.add(root, _Start())
        except RecursionError:
            place = self._sessions[root].place
            raise DatasetError(f"{place}: its sessions start each other too deeply") from None
        return checked_tree(
            TracedTree(
                id=root,
                place=self._sessions[root].place,
                streams=tuple(builder.streams),
                requests=tuple(builder.requests),
            )
        )


def _children(session: _Session) -> Iterator[str]:
    yield from session.pre_session_spawns
    yield from session.spawns
    for each in session.rounds if isinstance(session.rounds, list) else ():
        yield from each.spawns
    for turn in session.turns:
        for fork in turn.forks:
            yield fork if isinstance(fork, str) else fork.child
        for spawn in turn.spawns:
            yield from [spawn] if isinstance(spawn, str) else spawn.children


def _check(session: _Session) -> None:
    """Raise DatasetError for a session that cannot be replayed."""
    problem = _problem(session)
    if not problem and not session.orchestrator:
        for number, turn in enumerate(session.turns):
            problem = _turn_problem(turn, number, len(session.turns))
            if problem:
                problem = f"turns[{number}]: {problem}"
                break
    if problem:
        raise DatasetError(f"{session.place}: {problem}")


def _problem(session: _Session) -> str:
    times = ("think_time_ms", "think_time_min_ms", "think_time_max_ms")
    for name in times:
        if (value := getattr(session, name)) is not None and (wrong := _delay_problem(name, value)):
            return wrong
    sigma = session.think_time_sigma
    if sigma is not None and not 0 <= sigma <= MAX_SIGMA:
        return f"`think_time_sigma` {sigma:g} is not between 0 and {MAX_SIGMA}"
    if not session.orchestrator:
        names = ("rounds", "spawns", *times, "think_time_sigma")
        if member := next((name for name in names if getattr(session, name)), ""):
            return f"`{member}` is of an `orchestrator` only"
        return "" if session.turns else "no `turns`"
    if session.turns or session.pre_session_spawns:
        return "an `orchestrator` has neither `turns` nor `pre_session_spawns`"
    if isinstance(session.rounds, int) and session.rounds < 1:
        return f"`rounds` {session.rounds}: expected a number of at least 1"
    if isinstance(session.rounds, list):
        for number, each in enumerate(session.rounds):
            if wrong := _delay_problem("think_time_ms", each.think_time_ms or 0.0):
                return f"rounds[{number}]: {wrong}"
        return "`spawns` are those of its `rounds`" if session.spawns else ""
    return "" if session.spawns else "an `orchestrator` needs `spawns` or `rounds`"


def _turn_problem(turn: _Turn, number: int, turns: int) -> str:
    if not turn.messages:
        return "no `messages`"
    if problem := message_problem(turn.messages) or _delay_problem("delay", turn.delay):
        return problem
    if turn.max_tokens is not None and not 1 <= turn.max_tokens < 2**31:
        return f"`max_tokens` {turn.max_tokens}: expected a number from 1 to {2**31 - 1}"
    for fork in turn.forks:
        child, is_background = _fork_parts(fork)
        if not is_background and number + 1 < turns:
            return (
                f"forks to {child!r}, which ends the session, and turns follow; expected the "
                'fork in the last turn, or {"child": ..., "background": true}'
            )
    for spawn in turn.spawns:
        join = None if isinstance(spawn, str) else spawn.join_at
        if join is not None and join <= number:
            return f"`join_at` {join} is before the spawn; expected a later turn"
        if join is not None and join >= turns:
            return f"`join_at` {join}: the session has {turns} turns, starting at 0"
    return ""


def _delay_problem(name: str, delay_ms: float) -> str:
    if 0 <= delay_ms <= MAX_DELAY_MS:
        return ""
    return f"`{name}` {delay_ms:g} is not between 0 and {MAX_DELAY_MS:,.0f} milliseconds"


class _Start(msgspec.Struct, frozen=True):
    """Start of a session: when, and with what."""

    parent: int = -1
    """Number of the stream that starts it; -1 for the root."""
    before: tuple[int, ...] = ()
    """Requests that must end before it starts."""
    history: tuple[Message, ...] = ()
    pause_ms: float = 0.0
    """Pause before it, in addition to that of its first turn."""


class _Builder:
    """Builds one tree: sessions become streams, and their turns become requests. A request is added
    after all requests that it waits for."""

    def __init__(self, sessions: Mapping[str, _Session], seed: int) -> None:
        self._sessions = sessions
        self._seed = seed
        self.streams: list[Stream] = []
        self.requests: list[TreeRequest] = []

    def add(self, name: str, start: _Start) -> tuple[int, ...]:
        """Add a session. Returns the requests that end it, including its forks and the sessions
        that it waits for."""
        session = self._sessions[name]
        stream = len(self.streams)
        self.streams.append(Stream(name, start.parent))
        if session.orchestrator:
            return self._add_rounds(session, stream, start)
        for child in session.pre_session_spawns:
            self.add(child, _Start(stream, start.before, pause_ms=start.pause_ms))
        joins: dict[int, set[int]] = {}
        history, last = start.history, start.before
        has_history = session.context_mode != "message_array_with_responses"
        for number, turn in enumerate(session.turns):
            own = (*history, *turn.messages) if has_history else tuple(turn.messages)
            plan = PlannedRequest(
                after=tuple(sorted({*last, *joins.pop(number, ())})),
                delay_ns=round((turn.delay + (0.0 if number else start.pause_ms)) * MS_NS),
                stream=stream,
            )
            last = (len(self.requests),)
            self.requests.append(_request(turn, own, plan))
            is_live = session.context_mode == "deltas_without_responses"
            history = (*own, ResponseOf(last[0])) if is_live else own
            for spawn in turn.spawns:
                children, join = ([spawn], None) if isinstance(spawn, str) else _parts(spawn)
                for child in children:
                    ends = self.add(child, _Start(stream, last))
                    joins.setdefault(number + 1 if join is None else join, set()).update(ends)
            for fork in turn.forks:
                child, is_background = _fork_parts(fork)
                ends = self.add(child, _Start(stream, last, history))
                if not is_background:
                    joins.setdefault(len(session.turns), set()).update(ends)
        return tuple(sorted({*last, *(number for each in joins.values() for number in each)}))

    def _add_rounds(self, session: _Session, stream: int, start: _Start) -> tuple[int, ...]:
        rounds = session.rounds
        if not isinstance(rounds, list):
            rounds = [_Round(session.spawns)] * (rounds or 1)
        before = start.before
        for number, each in enumerate(rounds):
            pause_ms = _think_ms(session, each, stream, number, self._seed)
            pause_ms += 0.0 if number else start.pause_ms
            ends = [
                self.add(child, _Start(stream, before, pause_ms=pause_ms)) for child in each.spawns
            ]
            before = tuple(sorted({number for each_ends in ends for number in each_ends}))
        return before


def _parts(spawn: _Spawn) -> tuple[list[str], int | None]:
    return spawn.children, spawn.join_at


def _fork_parts(fork: str | _Fork) -> tuple[str, bool]:
    return (fork, False) if isinstance(fork, str) else (fork.child, fork.background)


def _request(turn: _Turn, messages: tuple[Message, ...], plan: PlannedRequest) -> TreeRequest:
    members = dict(turn.extra or {})
    if turn.tools is not None:
        members["tools"] = turn.tools
    if turn.model:
        members["model"] = turn.model
    return TreeRequest(
        plan=plan,
        messages=messages,
        output_tokens=turn.max_tokens,
        members=members,
    )


def _think_ms(session: _Session, each: _Round, stream: int, number: int, seed: int) -> float:
    """Return the think time before a round. With a sigma it is drawn from a lognormal distribution
    with that median."""
    median = session.think_time_ms if each.think_time_ms is None else each.think_time_ms
    if median is None:
        return 0.0
    if session.think_time_sigma is None:
        return median
    name = zlib.crc32(session.session_id.encode())
    rng = generator(seed, Purpose.DELAYS, name, stream, number)
    drawn = median * math.exp(session.think_time_sigma * float(rng.standard_normal()))
    low, high = session.think_time_min_ms or 0.0, session.think_time_max_ms
    return max(low, min(drawn, MAX_DELAY_MS if high is None else high))
