from collections.abc import Mapping
from typing import Literal

from aiperf_svc.adapters.connection import Connection
from aiperf_svc.adapters.raw_records import RawRecords
from aiperf_svc.core.answer_layouts import Layout

Read = tuple[bytes, int, int]

def take_first(
    conn: Connection, polled_wall_ns: int, layouts: Mapping[int, Layout], records: RawRecords
) -> Read | int | None: ...
def take_more(conn: Connection, polled_wall_ns: int) -> Read | Literal[True] | None: ...
def set_constants(
    chunked: int,
    fragment_bytes: int,
    max_answer_bytes: int,
    head: int,
    fragment_size: int,
    read_size: int,
    final: int,
    completed: int,
) -> None: ...
