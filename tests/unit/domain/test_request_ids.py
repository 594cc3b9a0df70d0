"""Request ids are UUIDs from which the request can be recovered."""

import uuid

import pytest

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import id_prefix, request_id


def test_id_holds_run_phase_turn_and_index() -> None:
    made = request_id("89abcdef0123", Phase.PROFILING, 51, 2)
    assert made == "89abcdef-0123-8100-8002-800000000051"
    assert made.startswith(id_prefix("89abcdef0123", Phase.PROFILING))


@pytest.mark.parametrize("run_id", ["89abcdef0123", "test", "Bench-100K of today"])
@pytest.mark.parametrize(
    ("index", "turn"), [(0, 0), (15_000_000, 999), (7, 1_999), (7, 2_000), (3, 65_534)]
)
def test_id_is_a_custom_uuid_version_8(run_id: str, index: int, turn: int) -> None:
    made = request_id(run_id, Phase.WARMUP, index, turn)
    parsed = uuid.UUID(made)
    assert (str(parsed), parsed.version, parsed.variant) == (made, 8, uuid.RFC_4122)


def test_ids_differ_between_runs_and_phases() -> None:
    made = {request_id(run, phase, 1, 1) for run in ("a", "b", "0" * 12) for phase in Phase}
    assert len(made) == 6


def test_turns_of_a_long_conversation_have_own_ids() -> None:
    made = [request_id("89abcdef0123", Phase.PROFILING, 51, turn) for turn in range(65_535)]
    assert len(set(made)) == len(made)
    assert made[4_002] == "89abcdef-0123-8102-8002-800000000051"
