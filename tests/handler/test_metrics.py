"""Counters add up, and TorchServe is told of each."""

from __future__ import annotations

import threading
from pathlib import Path

import yaml

from handler.metrics import CATALOGUE, ERRORS, FORWARDS, Counters, torchserve_metrics_file


def test_counters_add_up_until_they_are_drained() -> None:
    counters = Counters()
    counters.add(FORWARDS, 2)
    counters.add(FORWARDS, 3)
    counters.add(ERRORS, 1, "malformed")
    assert counters.drain() == {(FORWARDS, ()): 5, (ERRORS, ("malformed",)): 1}
    assert counters.drain() == {}


def test_nothing_is_lost_between_threads() -> None:
    counters, drained = Counters(), []

    def count() -> None:
        for _ in range(5000):
            counters.add(FORWARDS, 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained.append(counters.drain())
    drained.append(counters.drain())
    assert sum(sums.get((FORWARDS, ()), 0) for sums in drained) == 20_000


def test_the_file_that_torchserve_reads_is_up_to_date() -> None:
    """If this fails: `hopserve metrics-file > deploy/metrics.yaml`."""
    path = Path(__file__).parents[2] / "deploy" / "metrics.yaml"
    assert yaml.safe_load(path.read_text()) == torchserve_metrics_file()


def test_every_metric_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for metric in CATALOGUE:
        assert f"`{metric.name}`" in text
