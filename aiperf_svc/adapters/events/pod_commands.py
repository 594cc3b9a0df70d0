"""Runs commands in containers with the API server's `exec`, and provides shell texts that signal a
container's processes from within.

A process with number 1 in its PID namespace cannot be signalled with KILL or STOP from within. In
pods with `shareProcessNamespace`, the pause container has number 1.
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
"""Finds the container's processes: all with its cgroup, except this shell and its children."""
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
"""Signals processes after `seconds`, unless the guard gets TERM before. The API server may take
minutes to notice that a runner's machine is gone, and only then does the input end. A container
without `sleep` has no guard. Unread output does not end the shell, which has to undo its
changes."""
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
"""KILL and STALL start with the first line of standard input. A stall ends with the second line,
after the seconds in the first line, or with the end of the input, which also follows if the runner
is killed."""

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
"""Keeps cores busy. The first line of standard input contains the maximum number of seconds and the
number of cores. Ends with the second line or the input, and prints the CPU time in hundredths of a
second."""


class PodCommand:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, where: str) -> None:
        self._socket, self._where, self._lines, self._rest = socket, where, list[str](), ""
        self._errors = ""

    async def send(self, line: str) -> None:
        """Write a line to the command's standard input. Raises EventFailed if that fails."""
        try:
            await self._socket.send_bytes(bytes([STDIN]) + line.encode() + b"\n")
        except (aiohttp.ClientError, OSError) as error:
            raise EventFailed(f"{self._where}: the connection to the command is lost") from error

    async def line(self) -> str:
        """Wait for the next line of output. Raises EventFailed if the command ends first."""
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
    """Run a command in a container while the context is open; then its input ends. Raises Refused,
    Unreachable."""
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
