"""The time for which a CPU quota stops a cgroup, from what the kernel counts.

`throttled_usec` and `throttled_time` are sums over CPUs: each CPU adds the time for which it had
tasks of the group and none of them might run (`unthrottle_cfs_rq` in kernel/sched/fair.c). A group
with threads on eight CPUs that is stopped for one second has up to eight.
"""


def stopped_share(*, throttled_ns: int, used_ns: int, length_ns: int) -> float:
    """Return the share of a time, 0 to 1, for which a quota stopped a cgroup that used `used_ns` of
    CPU time; of one that had work for more than one CPU, the share of the CPU time of its work that
    the quota took. With `used_ns` 0, not known, several CPUs make it too high."""
    wanted_ns = max(length_ns, throttled_ns + used_ns)
    return max(0.0, throttled_ns / wanted_ns) if wanted_ns > 0 else 0.0
