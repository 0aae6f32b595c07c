"""What the charts show of counters: rates and averages, restarts, gaps, and versions that come and go."""

from __future__ import annotations

import pytest

from tests.gateway.console.fakes import ONE, TWO, Fakes, graph_counts, served


def test_the_first_sample_tells_nothing_of_what_came_before() -> None:
    fakes = Fakes()
    fakes.envoy = {ONE: (1_000, 10, 0)}
    fakes.torchserve = {ONE: graph_counts(1_000)}
    assert fakes.sample() == {}


def test_points_are_of_what_came_in_the_last_seconds() -> None:
    fakes = Fakes()
    fakes.envoy, fakes.torchserve = {ONE: (1_000, 10, 0)}, {ONE: graph_counts(1_000)}
    fakes.sample()
    fakes.envoy, fakes.torchserve = {ONE: (1_100, 15, 5)}, {ONE: graph_counts(1_040)}
    point = fakes.sample()[ONE]
    assert point == {
        "rate": 50.0,
        "errors": pytest.approx(0.1),
        "p50": 5.5,
        "p95": 9.55,
        "p99": 9.91,
        "neighbors": 10.0,
        "edges": 110.0,
        "queue_ms": 3.0,
        "from live": 20.0,
    }
    # All of it is forgotten once the window has passed over it.
    for _ in range(7):
        point = fakes.sample()[ONE]
    assert (point["rate"], point["from live"]) == (0.0, 0.0)
    assert (point["p99"], point["errors"], point["neighbors"]) == (None, None, None)


def test_the_first_requests_of_all_are_seen() -> None:
    fakes = Fakes()
    fakes.envoy = {ONE: (0, 0, 0), TWO: (0, 0, 0)}
    fakes.sample()
    assert fakes.sample()[ONE] == {"rate": 0.0}
    fakes.envoy = {ONE: (20, 0, 0), TWO: (0, 0, 0)}
    point = fakes.sample()
    assert (point[ONE]["rate"], point[ONE]["p50"], point[TWO]["rate"]) == (5.0, 5.5, 0.0)
    fakes.envoy = {ONE: (0, 0, 0), TWO: (0, 0, 0)}  # another Envoy
    assert fakes.sample()[ONE]["rate"] == pytest.approx(20 / 6, abs=1e-3)


def test_counters_that_begin_anew_are_no_negative_rates() -> None:
    fakes = Fakes()
    fakes.envoy, fakes.torchserve = {ONE: (1_000, 10, 0)}, {ONE: graph_counts(1_000)}
    fakes.sample()
    fakes.sample()
    fakes.envoy, fakes.torchserve = {ONE: (20, 0, 0)}, {ONE: graph_counts(8)}
    point = fakes.sample()[ONE]
    assert (point["rate"], point["from live"], point["neighbors"]) == (5.0, 2.0, 10.0)
    assert point["errors"] == 0.0


def test_what_is_away_leaves_a_gap_and_is_named() -> None:
    fakes = Fakes()
    fakes.envoy, fakes.torchserve = {ONE: (0, 0, 0)}, {ONE: graph_counts(0)}
    fakes.sample()
    fakes.envoy, fakes.torchserve = {ONE: (40, 0, 0)}, {ONE: graph_counts(40)}
    fakes.sample()
    fakes.envoy = None
    point = fakes.sample()[ONE]
    assert (point["rate"], point["neighbors"]) == (None, 10.0)
    assert (fakes.sampler.seen.envoy, fakes.sampler.seen.torchserve) == ("Envoy does not answer", None)
    fakes.envoy, fakes.torchserve = {ONE: (60, 0, 0)}, None
    point = fakes.sample()[ONE]
    assert (point["rate"], point["neighbors"]) == (10.0, None)
    assert fakes.sampler.seen.torchserve == "TorchServe does not answer"
    fakes.torchserve = {ONE: graph_counts(60)}
    fakes.sample()
    assert (fakes.sampler.seen.envoy, fakes.sampler.seen.torchserve) == (None, None)


def test_versions_come_and_go() -> None:
    fakes = Fakes()
    fakes.envoy, fakes.torchserve = {ONE: (0, 0, 0)}, {ONE: graph_counts(0)}
    fakes.sample()
    fakes.envoy, fakes.torchserve = (
        {ONE: (2, 0, 0), TWO: (0, 0, 0)},
        {ONE: graph_counts(2), TWO: graph_counts(4)},
    )
    assert fakes.sample()[TWO]["from live"] == 2.0
    fakes.envoy, fakes.torchserve = {TWO: (6, 0, 0)}, {TWO: graph_counts(6)}
    point = fakes.sample()
    assert set(point[ONE].values()) == {None}
    assert point[TWO]["rate"] == 3.0
    for _ in range(450):
        point = fakes.sample()
    assert set(point) == {TWO}


def test_workers_are_read_only_while_someone_looks() -> None:
    fakes = Fakes()
    fakes.workers = [served("sage", "1.0")]
    fakes.sample()
    assert (fakes.num_looks, fakes.sampler.seen.workers) == (0, None)
    fakes.sampler.watch()
    fakes.sample()
    assert fakes.sampler.seen.workers == tuple(fakes.workers)
    fakes.workers = None
    fakes.sample()
    assert fakes.sampler.seen.workers is None
    assert fakes.sampler.seen.torchserve == "its management does not answer"
    for _ in range(10):
        fakes.sample()
    assert (fakes.num_looks, fakes.sampler.seen.torchserve) == (7, None)
