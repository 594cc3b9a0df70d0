"""Servers with known behaviour that once led to wrong numbers, crashes or false alarms.

Each module covers one topic and exports `SERVERS`. `python -m benchmarks.fuzz.known_servers`
measures each server with the whole product and compares the results with the truth.
"""
