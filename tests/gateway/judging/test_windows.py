"""What is made of counters that are read again and again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.judging.windows import History, Latencies, Totals, window_between

_BOUNDS = (1.0, 2.0, 5.0, 10.0)


def _latencies(*counts: int) -> Latencies:
    return Latencies(_BOUNDS, counts)


def _totals(at_s: float, requests: int, errors: int = 0) -> Totals:
    return Totals(at_s, requests, errors, 0, _latencies(requests, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("counts", "q", "quantile_ms"),
    [
        ((10, 0, 0, 0, 0), 0.5, 0.5),
        ((0, 0, 10, 0, 0), 0.5, 3.5),
        ((5, 5, 0, 0, 0), 0.5, 1.0),
        ((5, 5, 0, 0, 0), 0.75, 1.5),
        ((0, 0, 0, 0, 1), 0.99, 10.0),
        ((0, 0, 0, 0, 0), 0.99, 0.0),
    ],
)
def test_quantiles_are_spread_evenly_in_their_bucket(
    counts: tuple[int, ...], q: float, quantile_ms: float
) -> None:
    assert _latencies(*counts).quantile(q) == pytest.approx(quantile_ms)


def test_only_what_was_slower_for_sure_counts_as_slow() -> None:
    latencies = _latencies(1, 10, 100, 1_000, 10_000)
    assert latencies.num_above(2.0) == 11_100
    assert latencies.num_above(3.0) == 11_000
    assert latencies.num_above(10.0) == 10_000
    assert latencies.num_above(11.0) == 0


@given(st.lists(st.floats(0.01, 9.99), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_a_quantile_is_within_the_bucket_of_the_true_one(times_ms: list[float], q: float) -> None:
    counts = [0] * 5
    for time_ms in times_ms:
        counts[next(place for place, bound in enumerate((*_BOUNDS, math.inf)) if time_ms <= bound)] += 1
    true_ms = sorted(times_ms)[max(0, math.ceil(q * len(times_ms)) - 1)]
    bucket = next(place for place, bound in enumerate(_BOUNDS) if true_ms <= bound)
    low, high = (0.0, *_BOUNDS)[bucket], _BOUNDS[bucket]
    assert low <= _latencies(*counts).quantile(q) <= high


def test_a_window_is_what_came_between() -> None:
    window = window_between(_totals(10, 100, 5), _totals(12, 160, 8))
    assert (window.seconds, window.requests, window.errors) == (2, 60, 3)
    assert (window.rate, window.error_rate) == (30, 0.05)


def test_counters_that_began_anew_count_from_nothing() -> None:
    assert window_between(_totals(10, 100, 5), _totals(12, 30, 1)).requests == 30


def test_a_history_forgets_what_is_old_and_counts_on_over_restarts() -> None:
    history = History(keep_s=10)
    for second in range(20):
        history.add(_totals(second, second * 10))
    history.add(_totals(20, 5))  # a process that started again
    window = history.window(3)
    assert window is not None
    assert (window.seconds, window.requests) == (3, 25)
    whole = history.window()
    assert whole is not None
    assert (whole.seconds, whole.requests) == (20, 195)


def test_a_history_begins_anew() -> None:
    history = History(keep_s=10)
    assert history.window() is None
    history.add(_totals(0, 0))
    assert history.window() is None
    history.add(_totals(1, 7))
    history.restart()
    assert history.window() is None
    history.add(_totals(2, 8))
    history.add(_totals(3, 10))
    window = history.window(100)
    assert window is not None
    assert window.requests == 2


@pytest.mark.parametrize(
    ("bounds", "counts"), [((), (1,)), ((2.0, 1.0), (0, 0, 0)), ((1.0,), (1,)), ((1.0,), (1, -1))]
)
def test_what_is_no_histogram_is_refused(bounds: Any, counts: Any) -> None:
    with pytest.raises(ValueError, match="bound"):
        Latencies(bounds, counts)


def test_degraded_answers_are_counted_by_another_process() -> None:
    """Whose counters do not go back when the others do."""
    before = Totals(10, 1_000, 5, 400, _latencies(1_000, 0, 0, 0, 0))
    after = Totals(12, 20, 0, 402, _latencies(20, 0, 0, 0, 0))
    window = window_between(before, after)
    assert (window.requests, window.errors, window.degraded) == (20, 0, 2)
    assert window.with_degraded_as_errors().error_rate == 0.1


def test_windows_of_several_versions_are_one() -> None:
    window = window_between(_totals(0, 0), _totals(2, 10, 1)) + window_between(
        _totals(1, 0), _totals(2, 5, 2)
    )
    assert (window.seconds, window.requests, window.errors) == (2, 15, 3)


def test_before_the_first_request_nobody_knows_the_bounds() -> None:
    """Envoy names them with the first request, and again none when it has started anew."""
    history, nothing = History(60), Latencies.empty((1.0,))
    known = Latencies((5.0, 10.0), (1, 2, 3))
    for at_s, latencies in enumerate((nothing, nothing, known, nothing, known)):
        history.add(Totals(float(at_s), latencies.total, 0, 0, latencies))
    window = history.window()
    assert window is not None
    assert window.latencies == known + known
    assert window.requests == 12
    with pytest.raises(ValueError, match="no pair"):
        Latencies((1.0,), (1, 0)) + known
