"""The entry point: `python -m aiperf_svc`, the command `aiperf-svc`, and every pod.

The imports of a service take seconds on a busy node. The kernel drops a SIGTERM to the first
process of a pod as long as that has no handler, and the pod would then last until its grace period
is over; so the handler comes before the imports. A stop that comes before the work has begun ends
the program like Ctrl-C does: what is open is closed, nothing is printed.
"""


def main() -> int:
    """Run the command line; the exit code."""
    try:
        import signal

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from aiperf_svc.adapters.host.collector import hold_back_collector

        hold_back_collector()
        from aiperf_svc.cli import main as cli

        return cli.main()
    except KeyboardInterrupt:
        from aiperf_svc.domain.exit_codes import ExitCode

        return int(ExitCode.INTERRUPTED)
    finally:
        import gc

        # The interpreter's end is a tenth of the time: all that is left goes with the process, and
        # nothing is searched for circles.
        gc.freeze()


if __name__ == "__main__":
    import sys

    sys.exit(main())
