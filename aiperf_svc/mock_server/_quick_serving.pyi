import select

from aiperf_svc.mock_server.accounts import Rows
from aiperf_svc.mock_server.connections import Connection as OpenConnection
from aiperf_svc.mock_server.quick_serving import Due, Left
from aiperf_svc.mock_server.replies import Reply
from aiperf_svc.mock_server.serving_state import PlainConnectionState, PlainTally

class Connection(PlainConnectionState): ...
class Tally(PlainTally): ...

class QuickEvents:
    def __new__(
        cls,
        epoll: select.epoll,
        table: list[OpenConnection | None],
        quick: dict[bytes, Reply],
        tally: PlainTally,
    ) -> QuickEvents: ...
    def poll(self, is_waiting: bool, /) -> None: ...
    def next_left(self) -> Left | None: ...

class DueWrites:
    def __new__(
        cls,
        table: list[OpenConnection | None],
        tally: PlainTally,
        rows: Rows | None,
        itl_ns: int,
    ) -> DueWrites: ...
    def add(self, connection: OpenConnection) -> None: ...
    def first_ns(self) -> int: ...
    def shift(self, by_ns: int) -> None: ...
    def next_write(self, pass_ns: int, left: int) -> Due | None: ...
