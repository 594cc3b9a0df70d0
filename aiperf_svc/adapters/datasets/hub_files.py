"""A tokenizer's file from the Hugging Face hub, within a bounded time, or from the hub's cache.

The hub's own client retries for half a minute, and a name server that does not respond can block it
for longer. So the first request only asks, with a timeout, whether the file exists; then the file
is fetched. Everything runs in a separate thread, because nothing else limits the time of a DNS
look-up.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from aiperf_svc.adapters.host.private_files import use_user_umask

FILE = "tokenizer.json"
ATTEMPT_S = 5.0
"""Timeout of the hub's response that it has the file."""
RETRY_S = 1.0
DOWNLOAD_S = 300.0
"""Timeout of the download, which is a few megabytes."""

Result = TypeVar("Result")


class HubRefused(Exception):
    """Raised when the hub refuses the file; a retry will not help."""


class HubUnreachable(Exception):
    """Raised when the hub cannot be reached; it may be reachable from elsewhere, or later."""


class HubForbidden(HubUnreachable):
    """Raised when the user has forbidden requests to the hub."""


def hub_address() -> str:
    """Return the address of the hub, which HF_ENDPOINT overrides."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def cached_file(name: str, revision: str, file: str = FILE) -> Path | None:
    """Return the file in this machine's cache, without any request."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def find_on_hub(name: str, revision: str, *, timeout_s: float) -> None:
    """Check that the hub has the file. Retry for `timeout_s` while it cannot be reached. Raises
    HubRefused, HubUnreachable."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            _translated(lambda: _ask(name, revision), ATTEMPT_S)
            return
        except HubForbidden:
            raise
        except HubUnreachable:
            if time.monotonic() + RETRY_S >= until:
                raise
            time.sleep(RETRY_S)


def fetch_from_hub(name: str, revision: str, file: str = FILE) -> Path:
    """Return the file, downloaded into the cache if necessary. Raises HubRefused,
    HubUnreachable."""
    from huggingface_hub import hf_hub_download

    # Several users may share the cache.
    with use_user_umask():
        return Path(_translated(lambda: hf_hub_download(name, file, revision=revision), DOWNLOAD_S))


def _ask(name: str, revision: str) -> Any:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    return get_hf_file_metadata(hf_hub_url(name, FILE, revision=revision), timeout=ATTEMPT_S)


def _translated(call: Callable[[], Result], limit_s: float) -> Result:
    """Return the result of `call`, with the hub client's errors translated."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
    )

    try:
        return _within(limit_s, call)
    except (EntryNotFoundError, HFValidationError) as error:
        raise HubRefused(_first_line(error)) from error
    except OfflineModeIsEnabled as error:
        raise HubForbidden("HF_HUB_OFFLINE is set") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        text = f"status {status}: {_first_line(error)}"
        # 408 and 429 may be temporary; all others below 500 are errors of this request.
        if 400 <= status < 500 and status not in (408, 429):
            raise HubRefused(text) from error
        raise HubUnreachable(text) from error
    except TimeoutError as error:
        raise HubUnreachable(f"no response within {limit_s:g} s") from error
    except Exception as error:  # the client's HTTP library raises exceptions of several kinds
        raise HubUnreachable(_first_line(error)) from error


def _within(limit_s: float, call: Callable[[], Result]) -> Result:
    """Return the result of `call`, run in a thread. Raises TimeoutError if it takes longer; the
    thread is then abandoned."""
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
