"""Comparisons of finished runs: their cost and their error rate."""
