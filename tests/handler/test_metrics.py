"""Counters add up, and TorchServe is told of each."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from handler.metrics import (
    ANSWER_AGE,
    BATCH_REQUESTS,
    COUNTERS,
    DISTRIBUTIONS,
    ERRORS,
    FORWARDS,
    GAUGES,
    REQUESTS,
    STAGE_TIME,
    Counters,
    Distribution,
    exposed_names,
    torchserve_metrics_file,
)


def test_counters_add_up_until_they_are_drained() -> None:
    counters = Counters()
    counters.add(FORWARDS, 2)
    counters.add(FORWARDS, 3)
    counters.add(ERRORS, 1, "malformed")
    assert counters.drain() == {(FORWARDS, ()): 5, (ERRORS, ("malformed",)): 1}
    assert counters.drain() == {}


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5)), min_size=1, max_size=60), st.booleans())
def test_a_distribution_counts_what_is_up_to_each_bound(
    noted: list[tuple[float, int]], together: bool
) -> None:
    counters = Counters()
    values = np.repeat([value for value, _ in noted], [weight for _, weight in noted])
    if together:
        counters.observe_all(
            ANSWER_AGE, np.array([value for value, _ in noted]), weights=np.array([n for _, n in noted])
        )
    else:
        for value in values.tolist():
            counters.observe(ANSWER_AGE, value)
    counted = counters.drain()
    for bound in ANSWER_AGE.bounds:
        assert counted[ANSWER_AGE.buckets, (f"{bound:g}",)] == (values <= bound).sum()
    assert counted[ANSWER_AGE.buckets, ("+Inf",)] == counted[ANSWER_AGE.count, ()] == len(values)
    assert counted[ANSWER_AGE.sum, ()] == pytest.approx(values.sum())
    assert counters.drain() == {}


def test_empty_buckets_are_told_once_so_that_a_quantile_knows_of_them() -> None:
    counters = Counters()
    counters.observe(BATCH_REQUESTS, 64)
    first = {labels[-1]: amount for (metric, labels), amount in counters.drain().items() if labels}
    assert first == {
        bound: float(bound in {"64", "128", "256", "+Inf"}) for bound in BATCH_REQUESTS.named_bounds
    }
    counters.observe(BATCH_REQUESTS, 200)
    again = {labels[-1] for metric, labels in counters.drain() if labels}
    assert again == {"256", "+Inf"}


def test_nothing_is_lost_where_nobody_drains_for_long() -> None:
    counters = Counters()
    for _ in range(60_000):
        counters.observe_all(ANSWER_AGE, np.array([1, 2]), weights=np.array([1, 3]))
        counters.add_batch([(200, "ok")])
    counted = counters.drain()
    assert counted[ANSWER_AGE.count, ()] == 240_000
    assert counted[BATCH_REQUESTS.count, ()] == counted[REQUESTS, ("200",)] == 60_000


def test_stages_are_told_as_they_are_noted() -> None:
    counters = Counters()
    with counters.stages() as stages_us:
        for _ in range(2):
            with counters.timed("sample"):
                pass
    assert stages_us["sample"] == counters.drain()[STAGE_TIME.sum, ("sample",)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda each: each.name)
def test_bounds_ascend(distribution: Distribution) -> None:
    assert list(distribution.bounds) == sorted(set(distribution.bounds))


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
    for metric in (*COUNTERS, *DISTRIBUTIONS, *GAUGES):
        assert f"`{metric.name}`" in text
    assert {"hopserve_requests_total", "hopserve_stage_microseconds_bucket"} < exposed_names()
