from collections.abc import Mapping
from typing import Any

from aiperf_svc.adapters.inference.connection import Connection, PlainConnectionFields
from aiperf_svc.adapters.inference.raw_records import RawRecords
from aiperf_svc.adapters.inference.request import PlainRequestFields, Request
from aiperf_svc.core.responses.layouts import Layout

SHARED: Mapping[str, Mapping[str, Any]]

class RequestFields(PlainRequestFields): ...
class ConnectionFields(PlainConnectionFields): ...

def begin(conn: Connection, request: Request) -> int | None: ...
def has_unread(conn: Connection) -> bool: ...
def write_request(conn: Connection) -> int: ...
def pass_chunks(data: bytes, at: int) -> int: ...
def take_ready(
    events: list[tuple[int, int]],
    begin: int,
    end: int,
    connections: Mapping[int, Connection],
    polled_wall_ns: int,
    layouts: Mapping[int, Layout],
    records: RawRecords,
) -> list[tuple[Connection | None, int, Any]]: ...
def set_constants(constants: Mapping[str, int]) -> None: ...
