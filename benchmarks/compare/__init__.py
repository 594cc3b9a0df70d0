"""Comparisons of finished runs: their cost, and how often they are wrong."""
