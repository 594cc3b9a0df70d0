"""Links `aiperf-svc` of this checkout into the environment of this Python.

An editable install does the same, but needs build packages that a first measurement can do without.
It replaces both files.
"""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = """#!{python}
import sys
from aiperf_svc.__main__ import main
if __name__ == '__main__':
    sys.exit(main())
"""


def main() -> None:
    """Write the path file of the package, and the command."""
    packages = Path(sysconfig.get_path("purelib"), "_editable_impl_aiperf_svc.pth")
    packages.write_text(f"{ROOT}\n")
    command = Path(sysconfig.get_path("scripts"), "aiperf-svc")
    command.write_text(SCRIPT.format(python=sys.executable))
    command.chmod(0o755)


if __name__ == "__main__":
    main()
