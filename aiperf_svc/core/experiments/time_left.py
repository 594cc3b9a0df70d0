"""The remaining time of an experiment."""


def time_left_s(*, left: int, ended: int, took_s: float, since_s: float) -> float | None:
    """Return the expected time until the last trial has ended, in seconds; None while no trial has
    ended.

    `left` is the number of trials that have not ended, the current one included. `ended` trials
    took `took_s` together, and the latest ended `since_s` ago. The start of the processes is in
    neither.
    """
    if not ended:
        return None
    return max(0.0, left * took_s / ended - since_s)
