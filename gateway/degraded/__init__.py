"""Answers that are given while no worker of a version can: the last precomputed ones, marked as such."""
