"""How many pods each Job may run, as the cluster is told."""

import asyncio

from aiperf_svc.adapters.jobs.cluster_jobs import ClusterJobs


class JobShares:
    """The parallelism that each Job should have. The cluster is told each value until it has taken
    it."""

    def __init__(self, cluster: ClusterJobs) -> None:
        self._cluster = cluster
        self._wanted: dict[str, int] = {}
        self._untold: set[str] = set()
        """Jobs whose parallelism the cluster has not taken."""

    def set(self, job: str, parallelism: int) -> None:
        """Set what a Job should have. `tell` tells it."""
        self._wanted[job] = parallelism
        self._untold.add(job)

    @property
    def released(self) -> list[str]:
        """Jobs that may run pods."""
        return [name for name, share in self._wanted.items() if share]

    async def tell(self) -> None:
        """Tell the cluster each parallelism that it does not have. Raises EnvironmentProblem."""
        for name in sorted(self._untold):
            # What comes while the cluster is told is told it the next time.
            self._untold.discard(name)
            is_told = False
            try:
                is_told = await asyncio.to_thread(
                    self._cluster.set_parallelism, name, self._wanted[name]
                )
            finally:
                if not is_told:
                    self._untold.add(name)
