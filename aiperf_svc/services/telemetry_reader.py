"""Reads the metrics pages of servers and GPU exporters during a run. It is a part of the records
manager and does not affect the run's success. Failures are logged and reported in the results.
"""

import asyncio
import functools
import logging
import os
from time import monotonic_ns
from urllib.parse import urljoin, urlsplit

from aiperf_svc.adapters.inference.resolved_target import (
    config_at_url,
    look_up_in_thread,
    tls_context,
)
from aiperf_svc.adapters.telemetry.nvml import NvmlPages
from aiperf_svc.adapters.telemetry.pages import PageClient
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.telemetry import MAX_SOURCES, NVML_URL, Telemetry
from aiperf_svc.config.urls import address_of
from aiperf_svc.core.telemetry.duplicate_sources import CopyFinder, SourceAddress, unique_sources
from aiperf_svc.core.telemetry.gpu_users import used_by
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageError, PageReader
from aiperf_svc.core.telemetry.series import ServerLoad, server_load
from aiperf_svc.core.telemetry.server_facts import engine_of, stated_facts
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.services.base import is_set_within

TIMEOUT_S = 5.0
"""Timeout of a page. A saturated server may take seconds; the run does not wait for it."""
FIRST_PAGES_S = 2.0
"""Longest time for which the load waits for the first page of each source. The server's counts
before its first page are unknown."""
LOOKUP_S = 1.0
"""Timeout of the lookup of a page's server, which is needed to detect duplicates."""
LAST_PAGE_S = 1.0
"""Timeout of the last page, for which the results wait."""

log = logging.getLogger(__name__)


class TelemetryReader:
    """Reads every source of a run at its interval."""

    def __init__(self, config: BenchmarkConfig, *, namespace: str = "") -> None:
        """`namespace` is that of this pod, which contains the stack's own target."""
        self._config = config
        self._namespace = namespace
        self._interval_s = config.telemetry.interval / 1e9
        self._sources = _sources(config)
        self._exporters = {url: each for each in config.telemetry.exporters for url in each.pages}
        self._stopping = asyncio.Event()
        self._load_begins = asyncio.Event()
        self._replicas: list[list[SourceLog]] = []
        """For each name of the target with several addresses, the pages that are read instead. A
        server may also have another name."""
        self._copies = CopyFinder()
        self._unread = 0
        """Sources whose first read has not ended."""
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_over = False
        """Whether the results are being computed: later pages are ignored."""

    @property
    def logs(self) -> list[SourceLog]:
        """Return the log of each source. The target's page is left out if it does not exist, unless
        another address of the target has one."""
        known = {
            each.url
            for replicas in self._replicas
            if any(one.has_pages for one in replicas)
            for each in replicas
        }
        return [
            source
            for source in self._sources
            if not source.is_guess or source.has_pages or source.url in known
        ]

    def server_load(self) -> ServerLoad:
        return server_load(self._sources, self._copies)

    async def run(self) -> None:
        """Read until `stop`. A failing source is not an error of the run."""
        try:
            if self._sources:
                await self._read_all()
        except Exception as error:
            log.exception("telemetry has ended; the run continues without it")
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            for source in self._sources:
                source.fail(f"reading has ended: {error}")
        finally:
            self._started.set()
            self._ended.set()

    async def started(self) -> None:
        """Wait until the first read of each page has ended, within limits."""
        await is_set_within(self._started, FIRST_PAGES_S)

    def read_now(self) -> None:
        """Read every page now: between the warmup, whose requests have all ended, and the measured
        load. This excludes earlier counts."""
        self._load_begins.set()

    async def stop(self) -> None:
        """Read every page a last time, and end."""
        self._stopping.set()
        self._load_begins.set()
        await is_set_within(self._ended, 2 * LAST_PAGE_S)
        self._is_over = True

    async def _read_all(self) -> None:
        found = await asyncio.gather(*map(self._addresses_of, self._sources))
        instead = unique_sources([address for addresses in found for address in addresses])
        self._sources = list(dict.fromkeys(instead.values()))
        self._replicas = [[instead[each.source] for each in s] for s in found if len(s) > 1]
        self._unread = len(self._sources)
        make_tls = functools.partial(tls_context, self._config.endpoint.tls)
        telemetry = self._config.telemetry
        key, named = key_of_pages(telemetry), [page.url for page in telemetry.named_pages]
        async with (
            PageClient(make_tls, key=key, key_urls=named) as client,
            NvmlPages(telemetry.nvml) as nvml,
            asyncio.TaskGroup() as group,
        ):
            for source in self._sources:
                pages = nvml if source.url == NVML_URL else client
                group.create_task(self._follow(source, pages), name=f"telemetry of {source.url}")

    async def _addresses_of(self, source: SourceLog) -> list[SourceAddress]:
        """Return the source with its addresses. The target's name gives a source for each address,
        because each is a server that gets requests in turn; so does the name of a pool. With TLS
        the name itself is used, because certificates contain names."""
        if source.url == NVML_URL:
            return [SourceAddress(source, frozenset())]
        host, port, is_tls = address_of(source.url)
        is_target = source.is_guess and not source.is_gpu
        # Pages are read without the proxy.
        endpoint = self._config.endpoint.model_copy(update={"proxy": None})
        config = self._config.model_copy(update={"endpoint": endpoint})
        try:
            # The load waits for the first pages, but not for a resolver that does not respond.
            async with asyncio.timeout(None if is_target else LOOKUP_S):
                found = await look_up_in_thread(config_at_url(config, source.url))
        except (ConfigError, TimeoutError):
            return [SourceAddress(source, frozenset({host}))]
        # A machine may have IPv4 and IPv6 addresses.
        hosts = [str(each.address[0]) for each in found if each.family == found[0].family]
        has_several = is_target or source.pool
        if not has_several or is_tls or len(hosts) == 1:
            return [SourceAddress(source, frozenset(str(each.address[0]) for each in found))]
        return [
            SourceAddress(
                SourceLog(
                    f"http://{f'[{h}]' if ':' in h else h}:{port}{urlsplit(source.url).path}",
                    is_guess=source.is_guess,
                    pool=source.pool,
                ),
                frozenset({h}),
            )
            for h in hosts[:MAX_SOURCES]
        ]

    async def _follow(self, source: SourceLog, client: PageClient | NvmlPages) -> None:
        reader = PageReader()
        is_first = True
        while not self._stopping.is_set():
            began_ns = monotonic_ns()
            next_read = self._stopping if self._load_begins.is_set() else self._load_begins
            await self._read(source, reader, client, TIMEOUT_S)
            if is_first:
                is_first = False
                self._unread -= 1
                if not self._unread:
                    self._started.set()
            if source.is_guess and not source.has_pages:
                return
            left_s = self._interval_s - (monotonic_ns() - began_ns) / 1e9
            await is_set_within(next_read, max(0.0, left_s))
        await self._read(source, reader, client, LAST_PAGE_S)
        await self._describe(source, client)

    async def _describe(self, source: SourceLog, client: PageClient | NvmlPages) -> None:
        """Read what a server of a known kind reports about itself, after the load."""
        engine = engine_of(source)
        if engine is not None and engine.path:
            url = urljoin(source.url, engine.path)
            fetched = await client.fetch(url, timeout_s=LAST_PAGE_S)
            source.facts |= stated_facts(fetched.text)

    async def _read(
        self,
        source: SourceLog,
        reader: PageReader,
        client: PageClient | NvmlPages,
        timeout_s: float,
    ) -> None:
        fetched = await client.fetch(source.url, timeout_s=timeout_s)
        if self._is_over:
            return
        if fetched.failure:
            source.fail(fetched.failure)
            return
        try:
            page = reader.read(fetched.text)
        except PageError as error:
            source.fail(str(error))
            return
        if (exporter := self._exporters.get(source.url)) is not None:
            namespace = exporter.users_namespace or self._namespace
            used = used_by(page, namespace, exporter.users)
            if used is None:
                source.fail("it has no GPU that the target's pods use")
                return
            page = used
        source.add(
            page,
            wall_ns=fetched.wall_ns,
            latency_ns=fetched.latency_ns,
            clock_offset_s=fetched.clock_offset_s,
        )


def key_of_pages(telemetry: Telemetry) -> str:
    """Return the key for configured pages; empty if they need none. Raises ConfigError."""
    if telemetry.key_env is None:
        return ""
    key = os.environ.get(telemetry.key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"telemetry.key_env: expected a key of printable characters in the environment "
            f"variable {telemetry.key_env!r}"
        )
    return key


def _sources(config: BenchmarkConfig) -> list[SourceLog]:
    """Return every page to read, each once."""
    telemetry = config.telemetry
    named = {page.url: SourceLog(page.url, is_gpu=page.is_gpu) for page in telemetry.named_pages}
    found = {url: source for url, source in named.items() if source.is_gpu}
    if telemetry.nvml:
        found[NVML_URL] = SourceLog(NVML_URL, is_gpu=True)
    found |= {
        url: SourceLog(url, is_gpu=True, is_guess=True)
        for each in telemetry.exporters
        for url in each.pages
    }
    found |= {url: source for url, source in named.items() if not source.is_gpu}
    found |= {each.url: SourceLog(each.url, pool=each.name) for each in telemetry.pools}
    if telemetry.target:
        for target in config.endpoint.all_urls:
            parts = urlsplit(target)
            url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/metrics"
            found.setdefault(url, SourceLog(url, is_guess=True))
    return list(found.values())
