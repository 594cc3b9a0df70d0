"""Jinja2 templates from users and tokenizers, compiled and rendered in a sandbox.

The library's sandbox denies templates access to files and processes, but it does not prevent
endless loops or `'a' * 9_000_000_000`. Here each template has limits of CPU time and memory:

- Time is checked in each step of a loop and at each call. Only one operation runs between two
  checks, and the memory limit bounds the size of its operands. Operators that this does not bound
  have limits of their own.
- Memory is bounded by the kernel: while a template is compiled or rendered, the process may
  allocate only `MAX_BYTES` more. Compiling already evaluates the constant parts of a template.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from time import thread_time
from typing import TYPE_CHECKING, Any, TypeVar

from aiperf_svc.domain.number_text import size_text

if TYPE_CHECKING:
    import jinja2

MAX_S = 3.0
"""Maximum CPU time to render one prompt. Real templates take milliseconds, or a second with the
largest pictures."""
MAX_BYTES = 2**30
"""Maximum additional memory of the process: several copies of the largest prompt."""
MAX_BITS = 4096
"""Maximum length of the result of a product or a power."""
MAX_PARTS = 100_000
"""Maximum parts of the filter `slice`; equals the sandbox's limit of `range`."""
_CHECK_EVERY = 256

T = TypeVar("T")


class TooCostly(ValueError):
    """A template exceeds a limit."""


@cache
def _sandbox_class() -> "type[jinja2.Environment]":
    # Imported only to render, so workers and record processors do not pay for it.
    from jinja2 import nodes
    from jinja2.filters import FILTERS
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    slices: Callable[..., Any] = FILTERS["slice"]

    def limited_slice(value: Any, parts: int, fill_with: Any = None) -> Any:
        if parts > MAX_PARTS:
            raise TooCostly(f"slice({parts}): expected at most {MAX_PARTS:,} parts")
        return slices(value, parts, fill_with)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.filters["slice"] = limited_slice
            self.filters[_steps.__name__] = _steps
            # Generates random text of any length, which no request needs.
            del self.globals["lipsum"]

        def _parse(self, *source: Any) -> nodes.Template:
            tree = super()._parse(*source)
            for loop in tree.find_all(nodes.For):
                line = loop.iter.lineno
                counted = nodes.Filter(loop.iter, _steps.__name__, [], [], None, None, lineno=line)
                loop.iter = counted.set_environment(self)
            return tree

        def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            _check_time()
            return super().call(__context, __obj, *args, **kwargs)

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            if isinstance(left, int) and isinstance(right, int):
                size = abs(right) if operator == "**" else 1
                bits = left.bit_length() * size if operator == "**" else 0
                if max(bits, left.bit_length() + right.bit_length()) > MAX_BITS:
                    raise TooCostly(f"a {operator} with a result of over {MAX_BITS:,} bits")
            return super().call_binop(context, operator, left, right)

    return Sandbox


def sandbox(**options: Any) -> "jinja2.Environment":
    """Return an environment for templates, with options of Jinja2. Its templates only have limits
    inside `within_limits`."""
    return _sandbox_class()(**options)


def within_limits(work: Callable[[], T]) -> T:
    """Return the result of `work`, which uses a template. Raises TooCostly if it takes too long or
    too much memory."""
    global _deadline_s
    with _one_at_a_time, _memory_limit():
        _deadline_s = thread_time() + MAX_S
        try:
            return work()
        except MemoryError:
            raise TooCostly(
                f"takes over {size_text(MAX_BYTES)} of memory for one prompt; "
                "make its texts and lists shorter"
            ) from None
        except RecursionError:
            raise TooCostly("is nested too deeply, or calls itself without an end") from None


_one_at_a_time = threading.Lock()
"""The memory limit applies to the whole process."""
_deadline_s = 0.0
"""CPU time of this thread at which the work exceeds its limit."""


def _check_time() -> None:
    if thread_time() > _deadline_s:
        raise TooCostly(
            f"takes over {MAX_S:g} s of CPU time for one prompt; make its loops shorter"
        )


def _steps(values: Iterable[T]) -> Iterator[T]:
    """Yield the values of a loop."""
    for number, value in enumerate(values):
        if number % _CHECK_EVERY == 0:
            _check_time()
        yield value


@contextmanager
def _memory_limit() -> Iterator[None]:
    try:
        import resource

        # Takes a third of the time of a file object, and runs for each prompt.
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        pages = int(os.read(statm, 100).split()[0])
        os.close(statm)
    except (ImportError, OSError):
        yield  # macOS has neither.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    max_bytes = pages * os.sysconf("SC_PAGESIZE") + MAX_BYTES
    if any(each != resource.RLIM_INFINITY and each < max_bytes for each in (soft, hard)):
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
