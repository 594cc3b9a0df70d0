"""Opens files named by a user, a config or a line of a dataset.

They may be anything: `/dev/zero` has no end, opening a FIFO without a writer blocks, and opening a
device may have side effects. Errors are OSErrors, so callers report them like a missing
file.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


SMALL_FILE = 2**20
"""Size limit of a key, a certificate or a template."""


def open_file(path: Path) -> BufferedReader:
    """Open a regular file. Raises OSError if it cannot be opened or is not a regular file."""
    # Checked before opening, which may block until a writer comes, and again afterwards, when the
    # file can no longer be replaced.
    _check(path, path.stat().st_mode)
    file = path.open("rb")
    try:
        _check(path, os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a regular file. Raises OSError if it cannot be read or exceeds `max_bytes`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Some system files report no size, and a file may grow meanwhile.
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(content) > max_bytes:
        text = f"over {max_bytes / 2**20:g} MiB, the most that is read"
        raise OSError(errno.EFBIG, text, str(path))
    return content


def read_text_file(path: Path, max_bytes: int, *, encoding: str = "utf-8") -> str:
    """Read a regular file of at most `max_bytes` as text. Raises OSError like `read_file`, and
    UnicodeDecodeError."""
    return read_file(path, max_bytes).decode(encoding).replace("\r\n", "\n")


def _check(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise OSError(errno.EINVAL, f"{kind}; expected a regular file", str(path))
