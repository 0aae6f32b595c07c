"""Benchmarks: they print, and decide nothing. Run them with `scripts/bench`."""
