"""What is read of TorchServe's metrics, by old and new archives."""

from __future__ import annotations

import pytest

from gateway.console.observe import Counted, counted_of

_LABELS = 'model_name="sage",model_version="{}",Level="Model",Hostname="vm",'
_NEW = _LABELS.format("2.0")
_OLD = _LABELS.format("1.0")
_TEXT = f"""\
# HELP hopserve_nodes_total Torchserve prometheus counter metric with unit: count
# TYPE hopserve_nodes_total counter
hopserve_nodes_total{{source="live",{_OLD}}} 8.0
hopserve_nodes_total{{source="features",{_OLD}}} 2.0
hopserve_nodes_total{{source="cache",{_OLD}}} 30.0
hopserve_nodes_total{{source="live",{_NEW}}} 4.0
# HELP hopserve_sampled_neighbors_total Torchserve prometheus counter metric with unit: count
# TYPE hopserve_sampled_neighbors_total counter
hopserve_sampled_neighbors_total{{{_OLD}}} 95.0
# HELP hopserve_subgraph_edges_total Torchserve prometheus counter metric with unit: count
# TYPE hopserve_subgraph_edges_total counter
hopserve_subgraph_edges_total{{{_OLD}}} 1000.0
# HELP hopserve_sampled_neighbors_sum Torchserve prometheus counter metric with unit: count
# TYPE hopserve_sampled_neighbors_sum counter
hopserve_sampled_neighbors_sum{{hop="1",{_NEW}}} 36.0
hopserve_sampled_neighbors_sum{{hop="2",{_NEW}}} 300.0
# HELP hopserve_sampled_neighbors_count Torchserve prometheus counter metric with unit: count
# TYPE hopserve_sampled_neighbors_count counter
hopserve_sampled_neighbors_count{{hop="1",{_NEW}}} 3.0
hopserve_sampled_neighbors_count{{hop="2",{_NEW}}} 36.0
# HELP hopserve_subgraph_edges_sum Torchserve prometheus counter metric with unit: count
# TYPE hopserve_subgraph_edges_sum counter
hopserve_subgraph_edges_sum{{{_NEW}}} 336.0
# HELP hopserve_subgraph_edges_count Torchserve prometheus counter metric with unit: count
# TYPE hopserve_subgraph_edges_count counter
hopserve_subgraph_edges_count{{{_NEW}}} 3.0
# HELP ts_queue_latency_microseconds Torchserve prometheus counter metric with unit: Microseconds
# TYPE ts_queue_latency_microseconds counter
ts_queue_latency_microseconds{{model_name="sage",model_version="1.0",hostname="vm",}} 8000.0
# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count
# TYPE ts_inference_requests_total counter
ts_inference_requests_total{{model_name="sage",model_version="1.0",hostname="vm",}} 4.0
ts_inference_requests_total{{model_name="sage",model_version="default",hostname="vm",}} 9.0
"""


def test_averages_are_of_the_nodes_that_were_computed() -> None:
    counted = counted_of(_TEXT)
    assert set(counted) == {("sage", "1.0"), ("sage", "2.0")}
    old, new = counted["sage", "1.0"], counted["sage", "2.0"]
    assert (old.neighbors, old.edges) == (9.5, 100.0)
    assert (new.neighbors, new.edges) == (12.0, 112.0)
    assert old.answers == {"live": 8, "features": 2, "cache": 30}


def test_waiting_is_of_each_request() -> None:
    counted = counted_of(_TEXT)
    assert counted["sage", "1.0"].queue_ms == 2.0
    assert counted["sage", "2.0"].queue_ms is None


def test_metrics_that_are_absent_tell_nothing() -> None:
    assert counted_of("") == {}
    nothing = Counted(answers={"live": 4})
    assert (nothing.neighbors, nothing.edges, nothing.queue_ms) == (None, None, None)
    only_cached = Counted({"hopserve_sampled_neighbors": 5.0}, {"cache": 4})
    assert only_cached.neighbors is None


def test_what_came_since_is_told_by_source() -> None:
    older = Counted({"a": 1.0}, {"live": 2})
    newer = Counted({"a": 4.0, "b": 1.0}, {"live": 2, "cache": 5})
    assert newer.since(older) == Counted({"a": 3.0, "b": 1.0}, {"live": 0, "cache": 5})
    assert older + newer == Counted({"a": 5.0, "b": 1.0}, {"live": 4, "cache": 5})


@pytest.mark.parametrize(
    "newer", [Counted({"a": 3.0}, {"live": 1}), Counted({}, {"live": 9}), Counted({"a": 2})]
)
def test_counters_that_went_back_began_anew(newer: Counted) -> None:
    assert newer.since(Counted({"a": 4.0}, {"live": 2})) == newer
