"""The entry point of the command `aiperf-svc`, its processes and pods, and `python -m aiperf_svc`.

The imports of a service take seconds on a busy node. The kernel drops a SIGTERM to the first
process of a pod until that process has a handler, and the pod would then live until its grace
period ends, so the handler is installed before the imports. A SIGTERM before the work has begun
ends the program like Ctrl-C: it closes what is open and prints nothing.

No module is imported from the working folder, where a `queue.py` would shadow that of the standard
library. The modules imported at the top are part of the interpreter or already loaded.
"""

import atexit
import os
import sys


def main() -> int:
    """Run the command line and return the exit code."""
    _remove_working_folder()
    codes: list[int] = []
    # The handler that is registered first runs last, after those of all libraries. It would prevent
    # an earlier one, such as that of a coverage tool, from running.
    if not atexit._ncallbacks():
        atexit.register(_exit_immediately, codes)
    try:
        import signal

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from aiperf_svc.adapters.host.garbage_collection import delay_collection

        delay_collection()
        from aiperf_svc.cli import main as cli

        codes.append(cli.main())
    except KeyboardInterrupt:
        from aiperf_svc.domain.exit_codes import ExitCode

        codes.append(int(ExitCode.INTERRUPTED))
    return codes[0]


def _exit_immediately(codes: list[int]) -> None:
    """Exit without freeing memory, which takes a tenth of the time of a short run: services are
    forks, in which freeing an object first copies its page."""
    if not codes:
        return  # After an exception, the interpreter sets the exit code.
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # The interpreter reports it in its usual way.
    os._exit(codes[0])


def _remove_working_folder() -> None:
    """Remove the working folder from the import path, if only an empty entry in PYTHONPATH put it
    there, as in `$PYTHONPATH:/more`."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(named) > 1 and "" in named:
        folder = os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than all of this
        if folder in sys.path and folder not in map(os.path.abspath, filter(None, named)):
            sys.path.remove(folder)


def _register_package() -> None:
    """Register this package, because this file was executed by its path and no import has searched
    a folder for it."""
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
        _register_package()
    sys.exit(main())
