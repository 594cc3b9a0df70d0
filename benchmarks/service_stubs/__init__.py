"""Stand-ins for workers and record processors that speak the real protocol over real sockets.

One process plays many of each. A worker stub registers, sends heartbeats, probes the clock, fetches
dataset blocks, takes credits and returns them, at the rate that its users would have; a processor
stub sends batches of metric rows of the real layout and size for the requests that its workers
have ended. Nobody opens a connection to a target. What a real service reads and ignores is read
here too, but decoded once for all stubs of a process.
"""
