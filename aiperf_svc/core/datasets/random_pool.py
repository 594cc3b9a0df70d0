"""Draws prompts from pools, with replacement. A file is one pool; in a folder, each file is a
pool.

A line has the form of a single turn (`fields`). With several pools, a request combines one line of
each: their texts, pictures and sounds, or the query of one and the passages of another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.core.datasets.base import (
    Lines,
    PromptConversation,
    PromptTurn,
    Purpose,
    decoded,
    default_id,
    generator,
    line_error,
)
from aiperf_svc.core.datasets.fields import TurnFields, turn_of
from aiperf_svc.core.datasets.single_turn import EXPECTED
from aiperf_svc.domain.errors import DatasetError

DEFAULT_ENTRIES = 100
_AS = {"text": "texts", "prompt": "texts", "content": "texts", "image": "images", "audio": "audios"}
"""Members that are combined under another name."""
_LISTS = ("texts", "images", "audios", "passages")
_NOT_DRAWN = ("id", "session_id", "delay")
_COMPLETE = ("messages", "payload")
"""Members with a complete prompt, which cannot be combined."""

_decoder = msgspec.json.Decoder(str | TurnFields)


class PoolLine(msgspec.Struct, frozen=True):
    """One line of a pool."""

    place: str
    fields: TurnFields


def parse_pool(lines: Lines, source: str) -> list[PoolLine]:
    """Parse the lines of one pool. Raises DatasetError that names file and line, or only the file
    if it is empty."""
    pool = []
    for place, fields in decoded(lines, source, _decoder, expected=EXPECTED):
        pool.append(PoolLine(place, TurnFields(text=fields) if isinstance(fields, str) else fields))
    if not pool:
        raise DatasetError(f"{source}: no entries; a pool needs at least one line")
    return pool


def draw(
    pools: Mapping[str, Sequence[PoolLine]], count: int, seed: int
) -> list[PromptConversation]:
    """Return `count` entries. The first ones do not depend on `count`, and the lines of a pool do
    not depend on other pools. Raises DatasetError naming the lines of an invalid prompt."""
    drawn = [
        generator(seed, Purpose.POOLS, number).integers(len(pool), size=count).tolist()
        for number, pool in enumerate(pools.values())
    ]
    entries = []
    known: dict[tuple[int, ...], PromptTurn] = {}
    for index, key in enumerate(zip(*drawn, strict=True)):
        lines = [pool[place] for pool, place in zip(pools.values(), key, strict=True)]
        place = " and ".join(line.place for line in lines)
        if key not in known:
            known[key] = _turn(lines, place)
        entries.append(PromptConversation(default_id(index), (known[key],), place))
    return entries


def one_of_each(pools: Mapping[str, Sequence[PoolLine]]) -> list[PromptConversation]:
    """Return an entry for each line, combined with the first lines of the other pools. Raises
    DatasetError for a line that is not a prompt."""
    entries: list[PromptConversation] = []
    for name, pool in pools.items():
        others = [other[0] for key, other in pools.items() if key != name]
        for line in pool:
            turn = _turn([line, *others], line.place)
            entries.append(PromptConversation(default_id(len(entries)), (turn,), line.place))
    return entries


def _turn(lines: Sequence[PoolLine], place: str) -> PromptTurn:
    try:
        fields = lines[0].fields if len(lines) == 1 else _merged([line.fields for line in lines])
        turn = turn_of(fields)
    except ValueError as error:
        raise line_error(place, str(error), expected=EXPECTED) from None
    return PromptTurn(turn.prompt)


def _merged(parts: Sequence[TurnFields]) -> TurnFields:
    """Merge the fields of several lines into one."""
    whole = [name for name in _COMPLETE for part in parts if getattr(part, name) is not None]
    if whole:
        raise ValueError(f"`{whole[0]}` is a whole prompt, which only a single pool can have")
    members: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in msgspec.structs.asdict(part).items():
            if value is not None and name not in _NOT_DRAWN:
                found = value if isinstance(value, list) else [value]
                members.setdefault(_AS.get(name, name), []).extend(found)
    return TurnFields(**{name: _value(name, values) for name, values in members.items()})


def _value(name: str, values: list[Any]) -> Any:
    """Return the value of a member. Only lists can combine several lines."""
    if name in _LISTS:
        return values
    if len(values) > 1:
        raise ValueError(f"`{name}` is in several of the lines that are put together")
    return values[0]
