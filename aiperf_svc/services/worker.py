"""The worker generates the load: it connects the load generator and the inference client to the
bus.

It receives credits, dataset blocks and replies to its clock probes, and returns the counts of its
credits. `target_lookup.py` finds the target, `record_shipping.py` sends the records to the record
processor in the roster.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from typing import Any

import msgspec
import zmq

from aiperf_svc.adapters.host.clocks import read_clocks
from aiperf_svc.adapters.host.vitals import fd_limit
from aiperf_svc.adapters.inference.client import InferenceClient
from aiperf_svc.adapters.inference.entry_cache import EntryCache
from aiperf_svc.adapters.inference.request import Request
from aiperf_svc.adapters.inference.resolved_target import Target, config_at_url
from aiperf_svc.adapters.inference.several_targets import SeveralTargets
from aiperf_svc.adapters.inference.side_requests import probe_forced_length
from aiperf_svc.adapters.messaging.bus import Bus, ask, decode, encode, receive_each
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.control.clock_offset import ClockOffset
from aiperf_svc.core.control.control_intervals import (
    housekeeping_interval_s,
    poll_interval_ns,
    return_interval_s,
)
from aiperf_svc.core.endpoints.base import MalformedResponse
from aiperf_svc.core.endpoints.forced_length import Decision, may_force_length
from aiperf_svc.core.endpoints.history import added_to_history
from aiperf_svc.core.endpoints.registry import CONVERSATIONS
from aiperf_svc.core.load.entry_order import order_of
from aiperf_svc.core.load.target_addresses import shift_of
from aiperf_svc.core.responses.response_check import error_of
from aiperf_svc.core.responses.response_format import ResponseFormat
from aiperf_svc.core.responses.text import reply_of
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
    Turn,
)
from aiperf_svc.protocol.messages.events import RecordsAcknowledged, RosterPublished
from aiperf_svc.protocol.messages.reports import ClockEstimate, WorkerCounts
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.run_states import FINAL_STATES, RunState
from aiperf_svc.protocol.services import Service
from aiperf_svc.services.base import BaseService, every, is_set_within, mono_ns, wall_ns
from aiperf_svc.services.clock_probes import handle_reply, probe_clock
from aiperf_svc.services.context import RunContext
from aiperf_svc.services.generators import PrefillGenerator, generator_of
from aiperf_svc.services.load_generator import Added, LoadGenerator
from aiperf_svc.services.record_shipping import RecordShipping
from aiperf_svc.services.target_lookup import check_targets, find_target, follow_names

STARVED_RETURN_S = 0.002
"""Minimum time between returns when users wait for credits."""
EXPIRE_S = 0.5
ASK_AGAIN_S = 0.5
"""Seconds between requests for the decision while another worker probes the target."""
RESERVED_FDS = 256


Client = InferenceClient | SeveralTargets


class Worker(BaseService):
    """Sends the requests of its credits when they are due."""

    service = Service.WORKER

    def __init__(self, context: RunContext, bus: Bus) -> None:
        super().__init__(context, bus)
        self._identity = f"{self.id}.{context.epoch:x}".encode()
        self._credits = bus.connect(zmq.DEALER, Port.CREDIT_DROP, identity=self._identity)
        self._returns = bus.connect(zmq.PUSH, Port.CREDIT_RETURN)
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
        self._records = RecordShipping(
            bus,
            self.header,
            identity=self._identity,
            on_full=self._hold_back,
            on_room=self._resume_load,
            log=self.log,
        )
        self._progressed = asyncio.Event()
        self._requests_before: dict[str, int] = {}
        """Number of requests to each address before profiling."""
        self.work = {
            RunState.CONFIGURING: self._configure,
            RunState.READY: self._records.until_connected,
            RunState.DRAINING: self._drain,
            **dict.fromkeys(FINAL_STATES, self.close),
        }

    @cached_property
    def _format(self) -> ResponseFormat:
        return ResponseFormat.of(self.context.inference.endpoint)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [
            receive_each(self._credits, self._from_timing_manager),
            probe_clock(self, self._credits),
            self._fetch_blocks(),
            self._send_returns(),
            self._records.run(),
            every(
                housekeeping_interval_s(self.context.topology.workers_per_core), self._housekeeping
            ),
            every(EXPIRE_S, self._expire),
            follow_names(self._clients, self.log),
        ]

    async def _until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition of this object is true. It is tested when `_progressed` is set."""
        while not is_true():
            self._progressed.clear()
            await self._progressed.wait()

    # --- configuring -----------------------------------------------------------------------------

    async def _configure(self) -> None:
        config = self.context.inference
        self._configs = [config_at_url(config, url) for url in config.endpoint.all_urls]
        until_mono_ns = mono_ns() + config.endpoint.wait_for_server
        targets = [
            await find_target(
                each, run_id=self.context.run_id, until_mono_ns=until_mono_ns, note=self._note
            )
            for each in self._configs
        ]
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
            to_history=self._to_history,
            on_starved=self._return_now.set,
        )
        self._client = client = self._make_client(targets, generator)
        generator.attach(client)
        asyncio.get_running_loop().add_reader(client.fd, client.run_ready)
        await self._credits.send(encode(WorkerAttached(*self.header)))
        if may_force_length(config):
            decision = await self._decide_forced_length(target)
            entries.leaves_length_free = decision is Decision.LEAVE_OUT
        entries.fetch_fitting()
        await self._until(lambda: entries.is_ready and self._clock.is_known)
        # Report problems of the input first.
        await check_targets(config.endpoint, targets)

    def _note(self, progress: str) -> None:
        self.progress_text = progress

    def _make_client(self, targets: list[Target], generator: LoadGenerator) -> Client:
        options: dict[str, Any] = {
            "on_end": generator.on_end,
            "on_timer": generator.on_timer,
            "on_batch": self._records.add,
            "poll_every_ns": poll_interval_ns(self.context.topology.workers_per_core),
            "on_part": generator.on_part if isinstance(generator, PrefillGenerator) else None,
        }
        if len(targets) == 1:
            return InferenceClient(targets[0], **options)
        config = self.context.inference
        strategy, shift = config.endpoint.url_strategy, shift_of(config)
        return SeveralTargets(targets, shift=shift, strategy=strategy, **options)

    async def _decide_forced_length(self, target: Target) -> Decision:
        question = ForcedLengthAsked(*self.header)
        while True:
            decided = decode(await ask(self._dataset, encode(question)))
            assert isinstance(decided, ForcedLengthDecided)
            decision = Decision(decided.decision)
            if decision is Decision.WAIT:
                await asyncio.sleep(ASK_AGAIN_S)
            elif decision is Decision.PROBE:
                found = await probe_forced_length(
                    self.context.inference, target, self.context.run_id
                )
                self.log.info("probed the target for a forced output length: %s", found)
                question = ForcedLengthAsked(*self.header, *found)
            else:
                return decision

    def _to_history(self, turn: Turn, following: Sequence[Turn], request: Request) -> list[Added]:
        if turn.recorded:
            return [([turn.messages, turn.recorded], ())] * len(following)
        endpoint = self.context.inference.endpoint
        api, raw = CONVERSATIONS[endpoint.type], bytes(request.kept or b"")
        at, framing = request.body_offset, request.framing
        if error := error_of(raw, body_offset=at, framing=framing, format=self._format):
            raise MalformedResponse(error)
        reply = reply_of(
            raw, body_offset=at, framing=framing, is_streaming=endpoint.streaming, api=api
        )
        return [
            added_to_history(api, turn.messages, reply, each.tool_results, each.spare_result)
            for each in following
        ]

    async def _fetch_blocks(self) -> None:
        while True:
            number = await self._wanted.get()
            wanted = DatasetBlockRequested(*self.header, block=number)
            data = await ask(self._dataset, encode(wanted))
            if not data:
                return  # the dataset manager cannot create it, and tells the controller why
            block = decode(data)
            assert isinstance(block, DatasetBlock)
            assert self._entries is not None
            assert self._generator is not None
            self._entries.put(block)
            self._entries.fetch_fitting()
            self._progressed.set()
            self._generator.entries_arrived()

    def _clients(self) -> list[tuple[InferenceClient, BenchmarkConfig]]:
        """Return the client of each URL of the target, with its config."""
        parts = self._client.parts if self._client is not None else []
        return list(zip(parts, self._configs, strict=False))

    # --- clock -----------------------------------------------------------------------------------

    def clock(self) -> ClockEstimate:
        return self._clock.latest

    # --- credits ---------------------------------------------------------------------------------

    def _from_timing_manager(self, message: AnyMessage, _frame: bytes) -> None:
        if message.run_id != self.context.run_id:
            return
        if isinstance(message, ClockReply):
            handle_reply(self, self._clock, message)
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
                    # Before the first phase, the generator has only zero counts for a phase.
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
            last_seq=self._client.last_seq, records_dropped=self._records.dropped
        )

    def counts(self) -> tuple[WorkerCounts, ...]:
        if self._generator is None:
            return ()
        return (*self._past.values(), self._now())

    async def _send_returns(self) -> None:
        topology = self.context.topology
        interval_s = return_interval_s(topology.workers, topology.workers_per_core)
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

    def _hold_back(self) -> None:
        assert self._client is not None
        assert self._generator is not None
        self.log.log(
            logging.INFO if self._client.held_back_ns else logging.WARNING,
            "%.0f MiB of records wait for record processor %s; holding back the load until it has "
            "caught up",
            self._records.waiting_bytes / 2**20,
            self._records.processor,
        )
        self._client.hold_back()
        self._generator.hold_back()

    def _resume_load(self) -> None:
        if self._client is not None and self._generator is not None:
            self._client.resume()
            self._generator.resume()

    def on_acknowledged(self, message: RecordsAcknowledged) -> None:
        if self.id in message.highest:
            self._records.confirm(message.highest[self.id])

    def on_roster(self, roster: RosterPublished) -> None:
        me = self.me
        if roster.frozen and me is None:
            self.log.warning("not part of the run; staying idle")
        elif me is not None and me.lost:
            self._stop_after_loss()
        elif me is not None and roster.frozen and me.processor != self._records.processor:
            self._choose_processor()

    def _stop_after_loss(self) -> None:
        """Stop at once: this process was suspended for some seconds, its sends no longer count, and
        the other workers get the remaining load."""
        self.log.error("declared lost; sending nothing more")
        if self._generator is not None:
            phase = Phase(self._generator.phase)
            self._generator.stop(PhaseStopped(*self.header, phase, 0, 0), 0)

    def _choose_processor(self) -> None:
        """Send records to the processor in the roster."""
        assert self.roster is not None
        me = self.me
        assert me is not None
        if not me.processor:
            self.fail("no record processor is left")
            return
        addresses = {m.id: m.address for m in self.roster.members}
        if self.context.topology.raw_route == "direct":
            self._records.send_to(me.processor, Port.RAW_DIRECT, address=addresses[me.processor])
        else:
            self._records.send_to(me.processor, Port.RAW_FRONT)

    async def _drain(self) -> None:
        if self._client is None:
            return  # too late to take part
        self._client.flush()
        self.target_addresses = tuple(
            msgspec.structs.replace(
                use, requests=use.requests - self._requests_before.get(use.address, 0)
            )
            for use in self._client.address_uses()
        )
        self.network = tuple(part.network_times() for part in self._client.parts)
        await self._records.until_sent()

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
