"""Shared test helpers: fakes, servers and commands. `stack` holds those of cluster tests."""
