"""From what a user wrote to what runs, for inference loads and benchmarks of a tool alike.

Reads a config, makes the configs of trials, targets and shapes, and plans them.
"""
