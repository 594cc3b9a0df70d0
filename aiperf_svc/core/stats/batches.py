"""The number of consecutive batches that a run is cut into."""

BATCHES = 10
"""Number of batches of a run. More of them would be shorter, and neighbours in a busy queue would
depend on each other; 20 would make the interval only 4% narrower."""
LEAST_IN_BATCH = 10
"""Fewest requests in a batch for a statistic of the batch."""
