"""Commands in containers of a cluster, by the API server's `exec`, and the shell text that signals
a container's processes from within.

A process cannot be signalled with KILL or STOP from its own PID namespace if it is the first one
there. In pods with `shareProcessNamespace` the pause container is the first.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlencode

import aiohttp

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.events.event_run import EventFailed
from aiperf_svc.domain.foreign_text import one_line

PROTOCOLS = ("v4.channel.k8s.io",)
STDIN, STDOUT, STDERR, STATUS = range(4)
"""Channels: the first byte of each message."""
HEARTBEAT_S = 20.0
FIRST_IS_SERVER = "first"
_FIND = r"""
mine=$(cat /proc/self/cgroup); found=
for folder in /proc/[0-9]*; do
  pid=${folder#/proc/}
  [ "$pid" = "$$" ] && continue
  [ "$(cat "$folder/cgroup" 2>/dev/null)" = "$mine" ] || continue
  read -r stat 2>/dev/null < "$folder/stat" || continue
  rest=${stat##*) }; parent=${rest#* }; parent=${parent%% *}
  [ "$parent" = "$$" ] && continue
  [ "$pid" = 1 ] && { echo first; exit 0; }
  found="$found $pid"
done
[ -n "$found" ] || { echo none; exit 0; }
states() {
  text=
  for pid in $found; do
    read -r stat 2>/dev/null < "/proc/$pid/stat" || continue
    rest=${stat##*) }; text="$text $pid:${rest%% *}"
  done
  echo "$1$text"
}
"""
"""Finds the processes of the container: those of the same cgroup but for this shell and its
children."""
_LIMIT = r"""
trap '' PIPE
limit() {
  (
    trap 'kill -KILL $!; wait; exit' TERM
    sleep "$seconds" & wait $! && kill "$@"
  ) </dev/null >/dev/null 2>&1 &
  guard=$!
}
"""
"""Signals processes after `seconds`, unless the guard gets TERM before. The API server may notice
only after minutes that the machine of a runner is gone, and the input does not end until then. A
container without `sleep` has no guard. Output that nobody reads does not end the shell, which has
to undo what it did."""
KILL = _FIND + "read -r go || exit 0\nkill -KILL $found && echo killed$found\n"
STALL = (
    _FIND
    + _LIMIT
    + r"""
read -r seconds || exit 0
limit -CONT $found
trap 'kill -CONT $found; kill $guard; wait' EXIT
kill -STOP $found
tries=0
while line=$(states stopped) && [ "$tries" -lt 2000 ]; do
  case "$line" in *:[A-SU-Za-z]*) tries=$((tries + 1));; *) break;; esac
done
echo "$line"
read -r go
states held
kill -CONT $found
states continued
"""
)
"""Both begin with the first line of standard input. The stall ends with the second one, after the
seconds that the first one has, and with the end of the input, which comes too if the runner is
killed."""

BUSY = (
    _LIMIT
    + r"""
read -r seconds cores || exit 0
pids= guard=
trap 'kill -KILL $pids; kill $guard; wait' EXIT
while [ "$cores" -gt 0 ]; do
  (while :; do :; done) & pids="$pids $!"; cores=$((cores - 1))
done
limit -KILL $pids
echo started
read -r go
used=0
for pid in $pids; do
  read -r stat < "/proc/$pid/stat" || continue
  set -- ${stat##*) }
  used=$((used + ${12} + ${13}))
done
echo "$used"
"""
)
"""Keeps cores busy for the seconds that the first line of standard input has, at most, as many as
it has then, until the second line or the input's end; then prints the CPU time in hundredths of a
second."""


class PodCommand:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, where: str) -> None:
        self._socket, self._where, self._lines, self._rest = socket, where, list[str](), ""
        self._errors = ""

    async def send(self, line: str) -> None:
        """Write a line to its standard input. Raises EventFailed if the connection is lost."""
        try:
            await self._socket.send_bytes(bytes([STDIN]) + line.encode() + b"\n")
        except (aiohttp.ClientError, OSError) as error:
            raise EventFailed(f"{self._where}: the connection to the command is lost") from error

    async def line(self) -> str:
        """Wait for the next line of its output. Raises EventFailed if it ends first."""
        while not self._lines:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise EventFailed(f"{self._where}: the command ended{self._why}")
            channel, text = message.data[0], message.data[1:].decode(errors="replace")
            if channel == STDOUT:
                *whole, self._rest = (self._rest + text).split("\n")
                self._lines += whole
            elif channel == STDERR:
                self._errors += text
            elif channel == STATUS and '"Success"' not in text:
                with contextlib.suppress(ValueError):
                    self._errors += str(json.loads(text).get("message", ""))
                if not self._lines:
                    raise EventFailed(f"{self._where}: the command failed{self._why}")
        return self._lines.pop(0)

    @property
    def _why(self) -> str:
        text = one_line(self._errors.strip())
        return f": {text}" if text else ""


@contextlib.asynccontextmanager
async def pod_command(
    cluster: Cluster, namespace: str, pod: str, container: str, command: Sequence[str]
) -> AsyncIterator[PodCommand]:
    """Run a command in a container while the context is open; its input ends with it. Raises
    Refused, Unreachable."""
    query = urlencode(
        [
            *(("command", each) for each in command),
            ("container", container),
            *((name, "true") for name in ("stdin", "stdout", "stderr")),
        ]
    )
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{query}"
    async with cluster.websocket(path, protocols=PROTOCOLS, heartbeat_s=HEARTBEAT_S) as socket:
        yield PodCommand(socket, f"pod {pod}")
