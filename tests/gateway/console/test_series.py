"""The points of the charts: how many are kept, what is told of gaps, and when a version is forgotten."""

from __future__ import annotations

from gateway.console.series import Series

_OLD, _NEW = ("sage", "1.0"), ("sage", "2.0")


def test_points_are_told_once() -> None:
    series = Series(4)
    series.add({_OLD: {"rate": 1.0}}, at_s=10)
    series.add({_OLD: {"rate": 2.0}}, at_s=12)
    points = series.since(0)
    assert (points.first, points.last, points.times_s) == (1, 2, [10, 12])
    assert points.values == {_OLD: {"rate": [1.0, 2.0]}}
    points = series.since(1)
    assert (points.first, points.last, points.values) == (2, 2, {_OLD: {"rate": [2.0]}})
    points = series.since(2)
    assert (points.first, points.last, points.values) == (3, 2, {_OLD: {"rate": []}})


def test_only_the_last_points_are_kept() -> None:
    series = Series(4)
    for number in range(1, 11):
        series.add({_OLD: {"rate": number}}, at_s=number)
    points = series.since(0)
    assert (points.first, points.last, points.times_s) == (7, 10, [7, 8, 9, 10])
    assert points.values == {_OLD: {"rate": [7, 8, 9, 10]}}
    assert series.since(3) == points


def test_after_a_point_that_never_was_all_are_told() -> None:
    series = Series(4)
    series.add({}, at_s=1)
    assert series.since(99) == series.since(-1) == series.since(0)


def test_gaps_are_none_and_series_begin_when_they_do() -> None:
    series = Series(4)
    series.add({_OLD: {"rate": 1.0}}, at_s=1)
    series.add({}, at_s=2)
    series.add({_OLD: {"rate": 3.0, "p99": 0.0}, _NEW: {"rate": 4.0}}, at_s=3)
    assert series.since(0).values == {
        _OLD: {"rate": [1.0, None, 3.0], "p99": [None, None, 0.0]},
        _NEW: {"rate": [None, None, 4.0]},
    }


def test_a_version_without_points_is_forgotten() -> None:
    series = Series(3)
    series.add({_OLD: {"rate": 1.0}})
    for _ in range(2):
        series.add({_NEW: {"rate": 1.0}})
    assert _OLD in series.since(0).values
    series.add({_NEW: {"rate": 1.0}})
    assert set(series.since(0).values) == {_NEW}


def test_numbers_are_as_long_as_a_chart_needs() -> None:
    series = Series(1)
    series.add({_OLD: {"rate": 123.456789}})
    assert series.since(0).values == {_OLD: {"rate": [123.5]}}
