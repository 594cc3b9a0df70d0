"""Prints latency and bandwidth between two MPI processes as rows like those of IMB-MPI1 PingPong.

mpirun -np 2 python3 pingpong.py MAXLOG ITERATIONS
"""

import sys

try:
    import mpi4py
    from mpi4py import MPI
except ImportError as error:
    sys.exit(f"{sys.executable}: {error}; install mpi4py there, or put a python3 with it on PATH")

VOLUME = 40 * 2**20
"""Maximum bytes of one size sent in one direction, unless one message is larger."""
WARMUP = 10
"""Maximum warm-up round trips of each size, which are not timed."""


def round_trips(comm: MPI.Intracomm, size: int, count: int) -> float:
    """Return the seconds that `count` messages of `size` bytes take to the other rank and back."""
    outgoing = [bytearray(size), size, MPI.BYTE]
    incoming = [bytearray(size), size, MPI.BYTE]
    comm.Barrier()
    start: float = MPI.Wtime()
    for _ in range(count):
        if comm.rank == 0:
            comm.Send(outgoing, 1)
            comm.Recv(incoming, 1)
        else:
            comm.Recv(incoming, 0)
            comm.Send(outgoing, 0)
    end: float = MPI.Wtime()
    return end - start


def main(maxlog: int, iterations: int) -> None:
    """Measure all sizes."""
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        sys.exit(f"pingpong.py: {comm.size} processes; expected 2")
    lines = comm.rank == 0
    if lines:
        library = MPI.Get_library_version().partition(",")[0].rstrip("\0\n")
        print(f"# mpi4py {mpi4py.__version__}, {library}")
        print("#bytes #repetitions t[usec] Mbytes/sec", flush=True)
    sent = 0
    for size in (0, *(2**power for power in range(maxlog + 1))):
        count = max(1, min(iterations, VOLUME // max(size, 1)))
        warmup = min(count, WARMUP)
        round_trips(comm, size, warmup)
        time_us = round_trips(comm, size, count) / count / 2 * 1e6
        sent += size * (warmup + count)
        if lines:
            print(f"{size} {count} {time_us:.3f} {size / time_us:.3f}", flush=True)
    if lines:
        print(f"# each process sent {sent} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
