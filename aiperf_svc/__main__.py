"""The entry point: `python -m aiperf_svc`, the command `aiperf-svc`, and every pod.

The imports of a service take seconds on a busy node. The kernel drops a SIGTERM to the first
process of a pod as long as that has no handler, and the pod would then last until its grace period
is over; so the handler comes before the imports. A stop that comes before the work has begun ends
the program like Ctrl-C does: what is open is closed, nothing is printed.
"""


def main() -> int:
    """Run the command line; the exit code."""
    import atexit

    codes: list[int] = []
    # The first handler is called last, after those of all libraries. If the interpreter was started
    # with one, such as that of a tool that measures coverage, it would never be called.
    if not atexit._ncallbacks():
        atexit.register(_end_at_once, codes)
    try:
        import signal

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from aiperf_svc.adapters.host.collector import hold_back_collector

        hold_back_collector()
        from aiperf_svc.cli import main as cli

        codes.append(cli.main())
    except KeyboardInterrupt:
        from aiperf_svc.domain.exit_codes import ExitCode

        codes.append(int(ExitCode.INTERRUPTED))
    return codes[0]


def _end_at_once(codes: list[int]) -> None:
    """End this process without tidying up its memory, which is a tenth of the time of a short run:
    in a service, a fork, every object that is freed copies a page first."""
    import os
    import sys

    if not codes:
        return  # An exception: the interpreter knows the exit code.
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # The interpreter says so in its usual way.
    os._exit(codes[0])


if __name__ == "__main__":
    import sys

    sys.exit(main())
