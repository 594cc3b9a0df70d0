"""Describes why aiohttp could not open a connection."""

import os
import ssl

import aiohttp

from aiperf_svc.domain.foreign_text import one_line


def connect_failure(error: aiohttp.ClientConnectorError) -> str:
    """Return the operating system's error text, without aiohttp's words around it."""
    cause = error.os_error
    if isinstance(cause, ssl.SSLError):
        return one_line(f"TLS: {(cause.reason or str(cause)).replace('_', ' ').lower()}")
    # Errors of name look-ups have negative numbers; other texts come from the event loop.
    number = cause.errno or 0
    return one_line(os.strerror(number) if number > 0 else cause.strerror or str(cause))
