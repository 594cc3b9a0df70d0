"""The entry point: the command `aiperf-svc`, its processes, pods, `python -m aiperf_svc`.

The imports of a service take seconds on a busy node. The kernel drops a SIGTERM to the first
process of a pod as long as that has no handler, and the pod would then last until its grace period
is over; so the handler comes before the imports. A stop that comes before the work has begun ends
the program like Ctrl-C does: what is open is closed, nothing is printed.

No module is imported from the folder in which a user works: a `queue.py` there would take the place
of the library's. What is imported at the top is a part of the interpreter or already loaded.
"""

import atexit
import os
import sys


def main() -> int:
    """Run the command line; the exit code."""
    _leave_out_working_folder()
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
    if not codes:
        return  # An exception: the interpreter knows the exit code.
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # The interpreter reports it in its usual way.
    os._exit(codes[0])


def _leave_out_working_folder() -> None:
    """Import nothing from the working folder because of an empty entry in PYTHONPATH, such as that
    of `$PYTHONPATH:/more`. Named there, it stays."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(named) > 1 and "" in named:
        folder = os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than all of this
        if folder in sys.path and folder not in map(os.path.abspath, filter(None, named)):
            sys.path.remove(folder)


def _know_own_package() -> None:
    """Make this package the one that is imported, wherever it is: this file was executed by its
    path, and no folder has been searched for it."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = __file__.rpartition("/")[0]
    spec = spec_from_file_location(
        "aiperf_svc", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["aiperf_svc"] = package = module_from_spec(spec)
    spec.loader.exec_module(package)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working folder, or that of this file.
        del sys.path[0]
    if not __package__:
        _know_own_package()
    sys.exit(main())
