"""The parent of the serving processes: it forks them, waits for a reason to stop, and ends all of
them.

The parent creates each child's listening sockets just before it forks that child, so errors occur
where they can be reported, and clients can connect as soon as the address is announced. All
processes listen on the same ports (SO_REUSEPORT); the kernel distributes connections among them.
"""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.delays import duration_ns
from aiperf_svc.mock_server.http2 import ALPN
from aiperf_svc.mock_server.server import Server
from aiperf_svc.mock_server.shared_counters import SharedCounters

_BACKLOG = 4096
_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT)

Address = tuple[str, int]


class MockServerError(Exception):
    """Raised when the server cannot start or one of its processes died, with the remedy."""


def serve(config: MockServerConfig) -> None:
    """Serve until SIGTERM, SIGINT or the end of `owner_fd`, then return after all child processes
    have ended.

    Prints one line with the address when clients can connect. Call it in the main thread of a
    process without other threads, because it forks. Raises MockServerError if it cannot listen or a
    child dies.
    """
    tls = _tls_context(config)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    shared = SharedCounters(config.processes)
    respawn_ns = duration_ns(config.respawn)
    children: dict[int, int] = {}
    """Number of each serving process, by process id."""
    due_mono_ns: dict[int, int] = {}
    """When to replace the serving process with a number."""
    addresses: list[Address] = []
    gc.collect()
    gc.freeze()  # objects that exist now stay shared between the processes

    def begin(index: int, started_mono_ns: int) -> None:
        listeners = _listen(config, addresses)
        addresses[:] = [_address(listener) for listener in listeners]

        def run() -> None:
            Server(
                config,
                index=index,
                listeners=listeners,
                shared=shared,
                tls=tls,
                started_mono_ns=started_mono_ns,
            ).run()

        children[_fork(run)] = index
        for listener in listeners:
            listener.close()

    started_mono_ns = time.monotonic_ns()
    with _caught_signals() as wake_fd:
        try:
            for index in range(config.processes):
                begin(index, started_mono_ns)
            _announce(config, addresses)
            while not _is_stopped(wake_fd, config.owner_fd, min(due_mono_ns.values(), default=0)):
                now = time.monotonic_ns()
                for index in [each for each, at in due_mono_ns.items() if at <= now]:
                    del due_mono_ns[index]
                    begin(index, now)
                while (dead := _dead_child()) is not None:
                    if not respawn_ns:
                        raise MockServerError(
                            f"serving process {dead.si_pid} died (status {dead.si_status}); its "
                            "error is above; all others are stopped, since their account would not "
                            "be complete (--respawn replaces one that dies)"
                        )
                    os.waitpid(dead.si_pid, 0)
                    due_mono_ns[children.pop(dead.si_pid)] = now + respawn_ns
        finally:
            for child in children:
                os.kill(child, signal.SIGTERM)
                os.kill(child, signal.SIGCONT)  # a stopped process cannot end
            for child in children:
                os.waitpid(child, 0)
            gc.unfreeze()


# Listening


def _listen(config: MockServerConfig, known: list[Address]) -> list[socket.socket]:
    """Return sockets on every host and port, always in the same order; `known` are the addresses of
    the first call.
    """
    listeners: list[socket.socket] = []
    wanted = known or [
        (host, config.port + step if config.port else 0)
        for step in range(config.ports)
        for host in config.hosts
    ]
    try:
        for position, (host, port) in enumerate(wanted):
            if port == 0 and position % len(config.hosts):
                port = _address(listeners[-1])[1]  # every host has the same ports
            listeners.append(_listener(host, port, is_first=not known))
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise MockServerError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from error
    return listeners


def _listener(host: str, port: int, *, is_first: bool) -> socket.socket:
    """Return a listening socket. `::` are all addresses, also of IPv4, whatever the kernel has."""
    is_any = host == "::"
    if is_any and not socket.has_dualstack_ipv6():
        host, is_any = "0.0.0.0", False
    family, kind, protocol, _name, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_any:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if not is_first:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        # Only now for the first one; before, it would silently share a port with another server.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return host, port


def _announce(config: MockServerConfig, addresses: list[Address]) -> None:
    scheme = "https" if config.tls_cert else "http"
    urls = [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses]
    if config.json:
        line = json.dumps({"url": urls[0], "urls": urls, "pid": os.getpid()})
    else:
        line = f"listening on {', '.join(urls)}"
    print(line, flush=True)


def _tls_context(config: MockServerConfig) -> ssl.SSLContext | None:
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if config.http2:
        context.set_alpn_protocols(ALPN)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise MockServerError(
            f"cannot use --tls-cert {config.tls_cert} with --tls-key {config.tls_key or '(none)'}: "
            f"{error}; expected PEM files of a certificate and its key"
        ) from error
    return context


# Processes


def _fork(run: Callable[[], None]) -> int:
    """Run a function in a child process that ends with this process; return the child's id."""
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        return child
    _run_in_child(run, parent)


def _run_in_child(run: Callable[[], None], parent: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole group; the parent decides
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            gc.disable()  # the loop creates no reference cycles, and connections are many
            run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@contextmanager
def _caught_signals() -> Iterator[int]:
    """Make the descriptor readable on a stop signal or the death of a child while the context is
    open; then restore the signals."""
    wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    caught = (*_STOPS, signal.SIGCHLD)
    # The descriptor first, because the handlers ignore signals before it exists.
    previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, lambda *_: None) for number in caught}
    try:
        yield wake_fd
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(wake_fd)
        os.close(write_fd)


def _is_stopped(wake_fd: int, owner_fd: int, until_mono_ns: int) -> bool:
    """Wait until a child ends, or until a time if it is not 0. Return True on a stop signal and at
    the end of the owner's pipe."""
    poll = select.poll()
    poll.register(wake_fd, select.POLLIN)
    if owner_fd >= 0:
        poll.register(owner_fd, select.POLLIN)
    left_ms = max(0.0, (until_mono_ns - time.monotonic_ns()) / 1e6) + 1 if until_mono_ns else None
    for fd, _event in poll.poll(left_ms):
        if fd == owner_fd:
            return True
        if any(number in _STOPS for number in os.read(wake_fd, 4096)):
            return True
    return False


def _dead_child() -> "os.waitid_result | None":
    """Return a child that has ended and has not been reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the only one is to be replaced
        return None
