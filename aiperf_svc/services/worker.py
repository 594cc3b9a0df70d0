"""The worker makes the load: it connects the load generator and the inference client to the bus.

It sends finished batches to the record processor that the roster names. It keeps them until the
records manager has confirmed them, so that another processor can take over. It receives credits,
dataset blocks and replies to its clock probes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.host.clocks import read_clocks
from aiperf_svc.adapters.host.vitals import fd_limit
from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.entry_cache import EntryCache
from aiperf_svc.adapters.inference.forced_length_probe import probe
from aiperf_svc.adapters.inference.name_lookup import look_up_apart
from aiperf_svc.adapters.inference.readiness import refuses, why_not_ready
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.resolved_target import Target, at_url, resolve_target
from aiperf_svc.adapters.inference.several_targets import SeveralTargets
from aiperf_svc.adapters.messaging.bus import Bus, ask, decode, encode, receive_each
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.units import format_duration
from aiperf_svc.core.control.clock_offset import ClockOffset
from aiperf_svc.core.control.control_intervals import (
    housekeeping_interval_s,
    poll_interval_ns,
    return_interval_s,
)
from aiperf_svc.core.endpoints.chat import append_history
from aiperf_svc.core.endpoints.forced_length import Decision, may_force_length
from aiperf_svc.core.endpoints.registry import endpoint_of
from aiperf_svc.core.load.entry_order import order_of
from aiperf_svc.core.load.target_choice import shift_of
from aiperf_svc.core.records.outbox import RecordOutbox
from aiperf_svc.core.responses.text import response_text
from aiperf_svc.domain.errors import BenchmarkFailed, ConfigError, EnvironmentProblem
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import AnyMessage
from aiperf_svc.protocol.messages.credits import (
    ClockReply,
    CreditsGranted,
    CreditsReturned,
    PhaseOpened,
    PhaseStopped,
    WorkerAttached,
)
from aiperf_svc.protocol.messages.dataset import (
    DatasetBlock,
    DatasetBlockRequested,
    ForcedLengthAsked,
    ForcedLengthDecided,
)
from aiperf_svc.protocol.messages.events import RecordsAcknowledged, RosterPublished
from aiperf_svc.protocol.messages.records import RawBatch
from aiperf_svc.protocol.messages.reports import (
    AddressUse,
    ClockEstimate,
    HistogramDelta,
    WorkerCounts,
)
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, every, is_set_within, mono_ns, wall_ns
from aiperf_svc.services.clock_probes import probe_clock, take_reply
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.generators import generator_of
from aiperf_svc.services.load_generator import LoadGenerator
from aiperf_svc.services.prefill_generator import PrefillGenerator

STARVED_RETURN_S = 0.002
"""Shortest time between returns when users wait for credits."""
EXPIRE_S = 0.5
ASK_AGAIN_S = 0.5
"""Seconds between two questions while another worker sends a probe to the target, or while the
target is not ready."""
RESERVED_FDS = 256
LOOKUP_S = 2.0
"""Seconds between two look-ups of the target's name while connections fail. It doubles with each
look-up, because thousands of workers ask one resolver. A time without failures resets it."""
LONGEST_LOOKUP_S = 30.0


Client = InferenceClient | SeveralTargets


class Worker(BaseService):
    """Sends the requests that it is granted, when they are due."""

    service = Service.WORKER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._identity = f"{self.id}.{context.epoch:x}".encode()
        self._credits = bus.connect(zmq.DEALER, Port.CREDIT_DROP, identity=self._identity)
        self._returns = bus.connect(zmq.PUSH, Port.CREDIT_RETURN)
        self._raw: zmq.asyncio.Socket | None = None
        self._dataset = bus.connect(zmq.REQ, Port.DATASET_FRONT)
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._clock = ClockOffset()
        self._client: Client | None = None
        self._configs: list[BenchmarkConfig] = []
        """The config for each URL of the target."""
        self._generator: LoadGenerator | None = None
        self._entries: EntryCache | None = None
        self._past: dict[Phase, WorkerCounts] = {}
        self._returned: WorkerCounts | None = None
        self._return_now = asyncio.Event()
        self._outbox = RecordOutbox()
        self._is_holding_back = False
        self._records_dropped = 0
        self._batch_number = 0
        self._shipping = asyncio.Event()
        self._processor = ""
        self._progressed = asyncio.Event()
        self._progress = ""
        """What takes time while the run is configured."""
        self._requests_before: dict[str, int] = {}
        """Number of requests to each address before profiling."""
        self._address_uses: tuple[AddressUse, ...] = ()
        self._network: tuple[tuple[HistogramDelta, ...], ...] = ()
        self.work = {
            RunState.CONFIGURING: self._configure,
            RunState.READY: self._connect_processor,
            RunState.DRAINING: self._drain,
            RunState.DONE: self.close,
            RunState.CANCELLED: self.close,
            RunState.FAILED: self.close,
        }

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._credits, self._from_timing_manager),
            probe_clock(self, self._credits),
            self._fetch_blocks(),
            self._send_returns(),
            self._ship(),
            every(
                housekeeping_interval_s(self.context.topology.workers_a_core), self._housekeeping
            ),
            every(EXPIRE_S, self._expire),
            self._follow_name(),
        ]

    async def _until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition of this object is true. It is tested when `_progressed` is set."""
        while not is_true():
            self._progressed.clear()
            await self._progressed.wait()

    # --- configuring -----------------------------------------------------------------------------

    async def _configure(self) -> None:
        config = self.context.inference
        self._configs = [at_url(config, url) for url in config.endpoint.all_urls]
        until_mono_ns = mono_ns() + config.endpoint.wait_for_server
        targets = [await self._find_target(each, until_mono_ns) for each in self._configs]
        target = targets[0]
        self._entries = entries = EntryCache(
            target, self._wanted.put_nowait, partial(order_of, config)
        )
        self._generator = generator = generator_of(
            config,
            run_id=self.context.run_id,
            entries=entries,
            is_streaming=config.endpoint.streaming,
            connection_limit=max(1, fd_limit() - RESERVED_FDS),
            extend_history=self._extend_history,
            on_starved=self._return_now.set,
        )
        self._client = client = self._make_client(targets, generator)
        generator.attach(client)
        asyncio.get_running_loop().add_reader(client.fd, client.run_ready)
        await self._credits.send(encode(WorkerAttached(*self.header)))
        if may_force_length(config):
            decision = await self._decide_forced_length(target)
            entries.leaves_length_free = decision is Decision.LEAVE_OUT
        entries.fetch_what_fits()
        await self._until(lambda: entries.is_ready and self._clock.is_known)
        # What is wrong with the input comes first.
        await self._look_for_listeners(targets)

    async def _find_target(self, config: BenchmarkConfig, until_mono_ns: int) -> Target:
        """Return the target, which is ready if the config says to wait for that; all targets have
        until the same time."""
        run_id = self.context.run_id
        wait_ns = config.endpoint.wait_for_server
        while True:
            try:
                target = await asyncio.to_thread(resolve_target, config)
                said = (
                    await asyncio.to_thread(why_not_ready, config, target, run_id)
                    if wait_ns
                    else ""
                )
            except ConfigError as error:
                # The name of a pod that is not there yet has no address.
                if mono_ns() >= until_mono_ns:
                    raise
                said = str(error)
            if not said:
                self._progress = ""
                return target
            if mono_ns() >= until_mono_ns:
                raise EnvironmentProblem(
                    f"the server is not ready after {format_duration(wait_ns)} "
                    f"(endpoint.wait_for_server): {said}"
                )
            self._progress = f"waiting for the server: {said}"
            await asyncio.sleep(ASK_AGAIN_S)

    async def _look_for_listeners(self, targets: list[Target]) -> None:
        """Fail the run before its load if nothing listens anywhere. A hook may start the server."""
        endpoint = self.context.inference.endpoint
        if endpoint.wait_for_server or endpoint.all_hooks:
            return
        for target in targets:
            if not await asyncio.to_thread(refuses, target):
                return
        raise BenchmarkFailed(
            f"nothing listens at {', '.join(endpoint.first_hops)}: connection refused; start the "
            "server, or wait for it (endpoint.wait_for_server, --wait-for-server)"
        )

    def _make_client(self, targets: list[Target], generator: LoadGenerator) -> Client:
        given: dict[str, Any] = {
            "on_end": generator.on_end,
            "on_timer": generator.on_timer,
            "on_batch": self._on_batch,
            "poll_every_ns": poll_interval_ns(self.context.topology.workers_a_core),
            "on_part": generator.on_part if isinstance(generator, PrefillGenerator) else None,
        }
        if len(targets) == 1:
            return InferenceClient(targets[0], **given)
        config = self.context.inference
        strategy, shift = config.endpoint.url_strategy, shift_of(config)
        return SeveralTargets(targets, shift=shift, strategy=strategy, **given)

    async def _decide_forced_length(self, target: Target) -> Decision:
        finding = said = ""
        while True:
            question = ForcedLengthAsked(*self.header, finding=finding, said=said)
            found = decode(await ask(self._dataset, encode(question)))
            assert isinstance(found, ForcedLengthDecided)
            decision = Decision(found.decision)
            if decision is Decision.WAIT:
                await asyncio.sleep(ASK_AGAIN_S)
            elif decision is Decision.PROBE:
                finding, said = await asyncio.to_thread(
                    probe, self.context.inference, target, self.context.run_id
                )
                self.log.info("asked the target for a forced output length: %s %s", finding, said)
            else:
                return decision

    def _extend_history(self, history: bytes, messages: bytes, request: Request) -> bytes:
        endpoint = self.context.inference.endpoint
        text = response_text(
            bytes(request.kept or b""),
            body_offset=request.body_offset,
            framing=request.framing,
            is_streaming=endpoint.streaming,
            endpoint=endpoint_of(endpoint),
        )
        return append_history(history, messages, text)

    async def _fetch_blocks(self) -> None:
        while True:
            number = await self._wanted.get()
            wanted = DatasetBlockRequested(*self.header, block=number)
            data = await ask(self._dataset, encode(wanted))
            if not data:
                return  # The dataset manager cannot make it, and tells the controller why.
            block = decode(data)
            assert isinstance(block, DatasetBlock)
            assert self._entries is not None
            assert self._generator is not None
            self._entries.put(block)
            self._entries.fetch_what_fits()
            self._progressed.set()
            self._generator.entries_arrived()

    async def _follow_name(self) -> None:
        """Look up the target's name again while connections fail, as its pods may have moved."""
        pause_s = LOOKUP_S
        while True:
            await asyncio.sleep(pause_s)
            parts = self._client.parts if self._client is not None else []
            failing = [
                (part, config)
                for part, config in zip(parts, self._configs, strict=False)
                if part.addresses.wants_lookup
            ]
            pause_s = min(2 * pause_s, LONGEST_LOOKUP_S) if failing else LOOKUP_S
            for part, config in failing:
                await self._look_up(part, config)

    async def _look_up(self, client: InferenceClient, config: BenchmarkConfig) -> None:
        try:
            found = await look_up_apart(config)
        except ConfigError as error:
            self.log.warning("the target's addresses stay as they are: %s", error)
            return
        before = [address.name for address in client.addresses.in_use]
        client.addresses.replace(found)
        after = [address.name for address in client.addresses.in_use]
        if after != before:
            self.log.info("the target's addresses are now %s", ", ".join(after))

    # --- clock -----------------------------------------------------------------------------------

    def clock(self) -> ClockEstimate:
        return self._clock.latest

    # --- credits ---------------------------------------------------------------------------------

    def _from_timing_manager(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id:
            return
        if isinstance(message, ClockReply):
            take_reply(self, self._clock, message)
            self._progressed.set()
            return
        generator = self._generator
        if generator is None:
            return
        offset_ns = self._clock.at(read_clocks()).offset_ns
        match message:
            case PhaseOpened():
                if generator.phase != message.phase:
                    self._past[Phase(generator.phase)] = self._now()
                    # Before the first phase the generator counts, nothing, for a phase to come.
                    self._past.pop(message.phase, None)
                client = generator.client
                for part in client.parts:
                    part.addresses.begin_with(message.worker_rank)
                if message.phase is Phase.PROFILING:
                    uses = client.address_uses()
                    self._requests_before = {use.address: use.requests for use in uses}
                generator.open_phase(message, offset_ns)
            case CreditsGranted():
                generator.grant(message, offset_ns)
            case PhaseStopped():
                generator.stop(message, offset_ns)

    def _now(self) -> WorkerCounts:
        assert self._generator is not None
        assert self._client is not None
        return self._generator.counts(
            last_seq=self._client.last_seq, records_dropped=self._records_dropped
        )

    def progress_text(self) -> str:
        return self._progress

    def counts(self) -> tuple[WorkerCounts, ...]:
        if self._generator is None:
            return ()
        return (*self._past.values(), self._now())

    def target_addresses(self) -> tuple[AddressUse, ...]:
        return self._address_uses

    def network(self) -> tuple[tuple[HistogramDelta, ...], ...]:
        return self._network

    async def _send_returns(self) -> None:
        topology = self.context.topology
        interval_s = return_interval_s(topology.workers, topology.workers_a_core)
        while True:
            if await is_set_within(self._return_now, interval_s):
                await asyncio.sleep(STARVED_RETURN_S)
            self._return_now.clear()
            if self._generator is None:
                continue
            taken_mono_ns = mono_ns()
            counts, is_idle = self._now(), self._generator.is_idle
            if counts == self._returned:
                continue
            self._returned = counts
            await self._returns.send(
                encode(CreditsReturned(*self.header, counts, is_idle, taken_mono_ns))
            )

    # --- records ---------------------------------------------------------------------------------

    def _on_batch(self, fragments: bytes, reads: bytes, bodies: bytes, last_seq: int) -> None:
        self._batch_number += 1
        batch = RawBatch(
            *self.header,
            number=self._batch_number,
            fragments=fragments,
            reads=reads,
            bodies=bodies,
        )
        self._outbox.add(batch, last_seq)
        self._shipping.set()
        if self._outbox.is_full and not self._is_holding_back:
            self._hold_back()

    def _hold_back(self) -> None:
        assert self._client is not None
        assert self._generator is not None
        self._is_holding_back = True
        self.log.log(
            logging.INFO if self._client.held_back_ns else logging.WARNING,
            "%.0f MiB of records wait for record processor %s; holding back the load until it has "
            "caught up",
            self._outbox.waiting_bytes / 2**20,
            self._processor,
        )
        self._client.hold_back()
        self._generator.hold_back()

    def _go_on(self) -> None:
        self._is_holding_back = False
        if self._client is not None and self._generator is not None:
            self._client.go_on()
            self._generator.go_on()

    async def _ship(self) -> None:
        while True:
            while self._outbox and (raw := self._raw) is not None:
                batch = self._outbox.take()
                if self._is_holding_back and self._outbox.has_room:
                    self._go_on()
                try:
                    await raw.send_multipart([self._processor.encode(), encode(batch)])
                except asyncio.CancelledError:
                    # A socket that closes cancels what waits to be sent: the batch is kept, and is
                    # in the outbox again for the next processor.
                    if not raw.closed or _is_cancelled():
                        raise
            self._progressed.set()
            self._shipping.clear()
            await self._shipping.wait()

    def on_acknowledged(self, message: RecordsAcknowledged) -> None:
        if self.id in message.highest:
            self._outbox.confirm(message.highest[self.id])

    def on_roster(self, roster: RosterPublished) -> None:
        me = self.me
        if roster.frozen and me is None:
            self.log.warning("not part of the run; staying idle")
        elif me is not None and roster.frozen and me.processor != self._processor:
            self._take_processor()

    async def _connect_processor(self) -> None:
        await self._until(lambda: self._raw is not None)

    def _take_processor(self) -> None:
        """Send records to the processor that the roster names. After a change this includes the
        records that are not confirmed."""
        assert self.roster is not None
        me = self.me
        assert me is not None
        if not me.processor:
            self.fail("no record processor is left")
            return
        addresses = {m.id: m.address for m in self.roster.members}
        is_change = bool(self._processor)
        if self.context.topology.raw_route == "direct":
            port, address = Port.RAW_DIRECT, addresses[me.processor]
        else:
            port, address = Port.RAW_FRONT, ""
        if self._raw is not None:
            self._raw.close(0)
        self._raw = self.bus.connect(zmq.DEALER, port, address=address, identity=self._identity)
        self._processor = me.processor
        self._progressed.set()
        if is_change:
            again, dropped = self._outbox.send_again()
            self._records_dropped += dropped
            self.log.warning(
                "record processor is now %s; sending %d batches again", self._processor, again
            )
        self._shipping.set()

    async def _drain(self) -> None:
        if self._client is None:
            return  # Came too late to take part.
        self._client.flush()
        self._address_uses = tuple(
            msgspec.structs.replace(
                use, requests=use.requests - self._requests_before.get(use.address, 0)
            )
            for use in self._client.address_uses()
        )
        self._network = tuple(part.network_times() for part in self._client.parts)
        self._shipping.set()
        await self._until(lambda: not self._outbox)

    def _housekeeping(self) -> None:
        if self._client is not None and self._generator is not None:
            self._client.housekeeping()
            self._generator.connect_ahead(wall_ns())

    def _expire(self) -> None:
        if self._client is not None:
            self._client.expire()

    async def close(self) -> None:
        if self._client is not None:
            asyncio.get_running_loop().remove_reader(self._client.fd)
            self._client.close()
            self._client = None
            self._generator = None


def _is_cancelled() -> bool:
    """Return whether the running task itself is cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
