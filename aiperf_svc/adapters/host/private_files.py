"""Access to the files of a run. Results contain prompts and responses, which other users should not
read.

All writers share the umask: the runner, the services, which inherit it, and the libraries that they
write with. Foreign programs and files, such as a command that the user measures or a shared cache,
get the user's umask back.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiperf_svc.domain.process_environment import USER_MASK

PRIVATE_MASK = 0o077


@contextmanager
def private_files() -> Iterator[None]:
    """Make new files and folders of this process and its children accessible to the user only."""
    before, mask = os.environ.get(USER_MASK), os.umask(PRIVATE_MASK)
    os.environ[USER_MASK] = f"{mask:o}"
    try:
        yield
    finally:
        os.umask(mask)
        del os.environ[USER_MASK]
        if before is not None:
            os.environ[USER_MASK] = before


def user_mask(environ: Mapping[str, str] = os.environ) -> int:
    """Return the user's umask; -1 if it is this process's own."""
    mask = environ.get(USER_MASK)
    return -1 if mask is None else int(mask, 8)


@contextmanager
def use_user_umask() -> Iterator[None]:
    """Create files and folders with the user's umask."""
    mask = user_mask()
    if mask < 0:
        yield
        return
    own = os.umask(mask)
    try:
        yield
    finally:
        os.umask(own)
