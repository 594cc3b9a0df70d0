"""Stubs of workers and record processors that use the real protocol on real sockets.

One process contains many of each. A worker stub registers, sends heartbeats, probes the clock,
fetches dataset blocks, takes credits and returns them at the rate of its users. A processor stub
sends batches of metric rows with the real layout and size for the requests that its workers have
ended. No stub connects to a target. Messages that a real service reads and ignores are read here
too, but decoded once for all stubs of a process.
"""
