"""Environment variables that the processes of a run have in common, on any machine."""

PROCESS_ENVIRONMENT = {
    # No service multiplies matrices, and starting threads for it would take time.
    "OPENBLAS_NUM_THREADS": "1",
    # Batches of records are a megabyte and come many times a second: with these limits the
    # allocator keeps their memory instead of asking the kernel for the same pages each time, which
    # costs a record processor a tenth of its time.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
"""Environment variables of every process of a run, unless the user sets others."""
