"""Whose the files of a run are: results hold prompts and responses, and others need not read them.

The mask for new files is the one place that all writers have in common: the runner, the services,
which inherit it, and the libraries that they write with. What is not ours, such as a command that
the user measures or a cache that several users share, gets the user's mask back.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiperf_svc.domain.process_environment import USER_MASK

PRIVATE_MASK = 0o077


@contextmanager
def private_files() -> Iterator[None]:
    """Make new files and folders of this process and its children the user's only."""
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
    """Return the mask that the user has for new files; -1 if it is that of this process."""
    mask = environ.get(USER_MASK)
    return -1 if mask is None else int(mask, 8)


@contextmanager
def files_of_user() -> Iterator[None]:
    """Make new files and folders of this process as the user's mask says."""
    mask = user_mask()
    if mask < 0:
        yield
        return
    own = os.umask(mask)
    try:
        yield
    finally:
        os.umask(own)
