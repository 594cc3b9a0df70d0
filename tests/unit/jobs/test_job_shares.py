"""The parallelism of each Job is sent to the cluster until it is accepted."""

from typing import cast

import pytest

from aiperf_svc.adapters.jobs.cluster_jobs import ClusterJobs, JobShares
from aiperf_svc.domain.errors import EnvironmentProblem


class FakeJobs:
    """A cluster that may be unreachable or not have a Job yet."""

    def __init__(self) -> None:
        self.is_away = False
        self.absent: set[str] = set()
        self.told: list[tuple[str, int]] = []

    def set_parallelism(self, name: str, parallelism: int) -> bool:
        if self.is_away:
            raise EnvironmentProblem("no response")
        if name in self.absent:
            return False
        self.told.append((name, parallelism))
        return True


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
def shares(jobs: FakeJobs) -> JobShares:
    return JobShares(cast("ClusterJobs", jobs))


async def test_each_value_is_sent_once(jobs: FakeJobs, shares: JobShares) -> None:
    shares.set("b", 1)
    shares.set("a", 2)
    shares.set("b", 3)
    await shares.apply()
    await shares.apply()
    assert jobs.told == [("a", 2), ("b", 3)]


async def test_absent_job_gets_its_value_later(jobs: FakeJobs, shares: JobShares) -> None:
    jobs.absent = {"a"}
    shares.set("a", 2)
    shares.set("b", 1)
    await shares.apply()
    jobs.absent = set()
    await shares.apply()
    assert jobs.told == [("b", 1), ("a", 2)]


async def test_silent_cluster_gets_the_value_later(jobs: FakeJobs, shares: JobShares) -> None:
    jobs.is_away = True
    shares.set("a", 2)
    with pytest.raises(EnvironmentProblem):
        await shares.apply()
    jobs.is_away = False
    await shares.apply()
    assert jobs.told == [("a", 2)]


def test_job_with_a_share_may_run_pods(shares: JobShares) -> None:
    shares.set("a", 2)
    shares.set("b", 0)
    assert shares.released == ["a"]
    shares.set("a", 0)
    assert shares.released == []
