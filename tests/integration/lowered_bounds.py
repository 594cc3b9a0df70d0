"""Bounds of one response that are a tenth of the true ones: what goes beyond them does so soon."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aiperf_svc.adapters.inference.stamped_reads import CONSTANTS, compiled

MIB = 2**20
RESPONSE_BYTES, EVENT_BYTES = 24 * MIB, 8 * MIB


@contextmanager
def lowered_bounds() -> Iterator[None]:
    """All that is read of a response, by the compiled steps too, and of one event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiperf_svc.core.responses.sse.MAX_EVENT_BYTES", EVENT_BYTES)
        name = "aiperf_svc.adapters.inference.response_reader.MAX_RESPONSE_BYTES"
        patch.setattr(name, RESPONSE_BYTES)
        if compiled is not None:
            compiled.set_constants({**CONSTANTS, "MAX_RESPONSE_BYTES": RESPONSE_BYTES})
        try:
            yield
        finally:
            if compiled is not None:
                compiled.set_constants(CONSTANTS)
