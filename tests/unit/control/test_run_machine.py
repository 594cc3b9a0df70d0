"""The states of a run, event by event."""

import msgspec

from aiperf_svc.core.control import run_machine
from aiperf_svc.core.control.run_machine import (
    CancelRequested,
    DeadlinePassed,
    FreezeRoster,
    HeartbeatReceived,
    MarkStarted,
    Publish,
    RosterChanged,
    RunMachine,
    StartScheduled,
)
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.protocol.messages.events import Heartbeat, Member
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service

MEMBERS = tuple(Member(s.value, s, 1, 0) for s in Service)
OTHERS = [s for s in Service if s is not Service.SYSTEM_CONTROLLER]


def beat(
    service: Service, reached: RunState, *, error: str = "", epoch: int = 1
) -> HeartbeatReceived:
    return HeartbeatReceived(
        Heartbeat(
            "run", service.value, epoch, service=service, seen_state=1, seen_roster=1,
            reached=reached, error=error,
        )
    )  # fmt: skip


def advance(machine: RunMachine, reached: RunState) -> list[run_machine.Instruction]:
    return [i for s in OTHERS for i in machine.handle(beat(s, reached))]


def ready_machine(*, has_warmup: bool = False) -> RunMachine:
    machine = RunMachine(has_warmup=has_warmup)
    machine.handle(RosterChanged(MEMBERS, is_complete=True))
    advance(machine, RunState.CONFIGURING)
    return machine


def test_run_goes_through_all_states_with_instructions() -> None:
    machine = RunMachine(has_warmup=True)
    instructions = machine.handle(RosterChanged(MEMBERS, is_complete=True))
    instructions += advance(machine, RunState.CONFIGURING)
    instructions += advance(machine, RunState.READY)
    for service, state in [
        (Service.TIMING_MANAGER, RunState.WARMUP),
        (Service.TIMING_MANAGER, RunState.PROFILING),
        (Service.RECORDS_MANAGER, RunState.DRAINING),
        (Service.RECORDS_MANAGER, RunState.PROCESSING),
    ]:
        instructions += machine.handle(beat(service, state))
    assert instructions == [
        Publish(RunState.CONFIGURING, "", False),
        FreezeRoster(),
        Publish(RunState.READY, "", False),
        MarkStarted(),
        Publish(RunState.WARMUP, "", False),
        Publish(RunState.PROFILING, "", False),
        Publish(RunState.DRAINING, "", False),
        Publish(RunState.PROCESSING, "", False),
        Publish(RunState.DONE, "", False),
    ]


def test_nothing_starts_before_the_roster_is_complete() -> None:
    machine = RunMachine(has_warmup=False)
    assert machine.handle(RosterChanged(MEMBERS[:3], is_complete=False)) == []
    assert machine.state is RunState.PENDING


def test_run_waits_for_slowest_service_and_names_it() -> None:
    machine = RunMachine(has_warmup=False)
    machine.handle(RosterChanged(MEMBERS, is_complete=True))
    for service in OTHERS:
        if service is not Service.WORKER:
            machine.handle(beat(service, RunState.CONFIGURING))
    assert machine.state is RunState.CONFIGURING
    assert machine.waiting_for() == ("worker",)


def test_progress_of_another_epoch_does_not_count() -> None:
    machine = RunMachine(has_warmup=False)
    machine.handle(RosterChanged(MEMBERS, is_complete=True))
    for service in OTHERS:
        machine.handle(beat(service, RunState.CONFIGURING, epoch=2))
    assert machine.state is RunState.CONFIGURING


def test_a_lost_worker_does_not_hold_the_run() -> None:
    machine = RunMachine(has_warmup=False)
    machine.handle(RosterChanged(MEMBERS, is_complete=True))
    for service in OTHERS:
        if service is not Service.WORKER:
            machine.handle(beat(service, RunState.CONFIGURING))
    gone = tuple(Member(m.id, m.service, 1, 0, lost=m.service is Service.WORKER) for m in MEMBERS)
    machine.handle(RosterChanged(gone, is_complete=True))
    assert machine.state is RunState.READY


def test_lost_single_service_fails_the_run_by_name() -> None:
    machine = ready_machine()
    gone = tuple(
        Member(m.id, m.service, 1, 0, lost=m.service is Service.RECORDS_MANAGER) for m in MEMBERS
    )
    (instruction,) = machine.handle(RosterChanged(gone, is_complete=True))
    assert isinstance(instruction, Publish)
    assert instruction.state is RunState.FAILED
    assert "records-manager was lost" in instruction.reason


def test_restarted_single_service_fails_run_under_load() -> None:
    machine = ready_machine()
    again = beat(Service.WORKER_MANAGER, RunState.READY, epoch=2)
    assert machine.handle(again) == []
    advance(machine, RunState.READY)
    assert machine.handle(beat(Service.WORKER, RunState.READY, epoch=2)) == []
    reason = "worker-manager was started again; the run cannot continue"
    assert machine.handle(again) == [Publish(RunState.FAILED, reason, False)]


def test_service_error_fails_the_run_with_its_message() -> None:
    machine = ready_machine()
    failed = beat(Service.DATASET_MANAGER, RunState.READY, error="no such file")
    (instruction,) = machine.handle(failed)
    assert instruction == Publish(RunState.FAILED, "dataset-manager: no such file", False)


def test_failed_run_has_the_kind_of_failure() -> None:
    machine = ready_machine()
    failing = beat(Service.DATASET_MANAGER, RunState.PENDING, error="input.jsonl:2: no JSON")
    refused = msgspec.structs.replace(failing.beat, exit_code=ExitCode.BAD_CONFIG)
    machine.handle(HeartbeatReceived(refused))
    assert (machine.state, machine.exit_code) == (RunState.FAILED, ExitCode.BAD_CONFIG)


def test_failure_of_late_member_does_not_fail_run() -> None:
    machine = ready_machine()
    advance(machine, RunState.READY)
    stranger = Heartbeat(
        "run", "worker-2", 1, service=Service.WORKER, seen_state=1, seen_roster=1,
        reached=RunState.PENDING, error="no target",
    )  # fmt: skip
    assert machine.handle(HeartbeatReceived(stranger)) == []
    assert machine.handle(beat(Service.WORKER, RunState.PENDING, error="no", epoch=2)) == []
    assert machine.state is RunState.PROFILING


def test_cancel_before_the_load_ends_the_run() -> None:
    machine = ready_machine()
    machine.handle(CancelRequested("interrupted"))
    assert machine.state is RunState.CANCELLED


def test_a_cancel_under_load_still_drains_and_processes() -> None:
    machine = ready_machine()
    advance(machine, RunState.READY)
    machine.handle(CancelRequested("interrupted"))
    assert machine.state is RunState.PROFILING
    machine.handle(beat(Service.TIMING_MANAGER, RunState.PROFILING))
    machine.handle(beat(Service.RECORDS_MANAGER, RunState.DRAINING))
    machine.handle(beat(Service.RECORDS_MANAGER, RunState.PROCESSING))
    assert machine.state is RunState.CANCELLED
    assert machine.reason == "interrupted"


def test_load_that_may_end_early_completes_the_run() -> None:
    machine = ready_machine()
    enough = beat(Service.RECORDS_MANAGER, RunState.READY)
    enough = HeartbeatReceived(msgspec.structs.replace(enough.beat, ends_early=True))
    machine.handle(enough)
    assert not machine.ends_early  # the load has not started
    advance(machine, RunState.READY)
    assert machine.handle(enough) == [Publish(RunState.PROFILING, "", is_cancelling=False)]
    assert machine.ends_early
    assert machine.handle(enough) == []
    machine.handle(beat(Service.TIMING_MANAGER, RunState.PROFILING))
    machine.handle(beat(Service.RECORDS_MANAGER, RunState.DRAINING))
    machine.handle(beat(Service.RECORDS_MANAGER, RunState.PROCESSING))
    assert machine.state is RunState.DONE


def test_a_cancel_in_warmup_skips_profiling() -> None:
    machine = ready_machine(has_warmup=True)
    advance(machine, RunState.READY)
    machine.handle(CancelRequested("interrupted"))
    machine.handle(beat(Service.TIMING_MANAGER, RunState.WARMUP))
    assert machine.state is RunState.DRAINING


def test_deadline_fails_only_its_own_state() -> None:
    machine = ready_machine()
    assert machine.handle(DeadlinePassed(RunState.PENDING, "late")) == []
    assert machine.handle(DeadlinePassed(RunState.READY, "late")) == [
        Publish(RunState.FAILED, "late", False)
    ]


def test_nothing_leaves_a_final_state() -> None:
    machine = ready_machine()
    machine.handle(DeadlinePassed(RunState.READY, "late"))
    assert machine.handle(CancelRequested("too late")) == []
    assert advance(machine, RunState.PROCESSING) == []
    assert machine.state is RunState.FAILED


def test_run_ends_when_remaining_members_have_finished() -> None:
    machine = ready_machine()
    advance(machine, RunState.READY)
    machine.handle(beat(Service.TIMING_MANAGER, RunState.PROFILING))
    machine.handle(beat(Service.RECORDS_MANAGER, RunState.DRAINING))
    machine.handle(beat(Service.RECORDS_MANAGER, RunState.PROCESSING))
    assert machine.state is RunState.DONE
    for service in OTHERS:
        assert not machine.has_everyone_ended
        machine.handle(beat(service, RunState.DONE))
    assert machine.has_everyone_ended


def test_lost_worker_is_not_awaited_at_the_end() -> None:
    machine = RunMachine(has_warmup=False)
    machine.handle(RosterChanged(MEMBERS, is_complete=True))
    machine.handle(beat(Service.DATASET_MANAGER, RunState.PENDING, error="no prompts"))
    assert machine.state is RunState.FAILED
    for service in OTHERS:
        if service is not Service.WORKER:
            machine.handle(beat(service, RunState.FAILED))
    assert not machine.has_everyone_ended
    left = tuple(msgspec.structs.replace(m, lost=m.service is Service.WORKER) for m in MEMBERS)
    machine.handle(RosterChanged(left, is_complete=False))
    assert machine.has_everyone_ended


def held_machine() -> RunMachine:
    machine = RunMachine(has_warmup=False, is_held=True)
    machine.handle(RosterChanged(MEMBERS, is_complete=True))
    advance(machine, RunState.CONFIGURING)
    return machine


def test_held_run_needs_readiness_and_a_start() -> None:
    late, early = held_machine(), held_machine()
    assert advance(late, RunState.READY) == []
    started = [MarkStarted(), Publish(RunState.PROFILING, "", False)]
    assert late.handle(StartScheduled(5)) == started
    assert early.handle(StartScheduled(5)) == []
    assert advance(early, RunState.READY) == started
    assert late.start_wall_ns == early.start_wall_ns == 5


def test_the_first_start_counts_and_others_have_none() -> None:
    machine, free = held_machine(), ready_machine()
    for each in (machine, free):
        each.handle(StartScheduled(5))
        each.handle(StartScheduled(9))
    assert (machine.start_wall_ns, free.start_wall_ns) == (5, 0)


def test_deadline_or_cancel_ends_unstarted_held_run() -> None:
    forgotten, cancelled = held_machine(), held_machine()
    for machine in (forgotten, cancelled):
        advance(machine, RunState.READY)
    assert forgotten.handle(DeadlinePassed(RunState.READY, "too long")) == [
        Publish(RunState.FAILED, "too long", False)
    ]
    assert cancelled.handle(CancelRequested("stop")) == [Publish(RunState.CANCELLED, "stop", True)]
