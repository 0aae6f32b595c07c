"""What is read of TorchServe's metrics."""

from __future__ import annotations

from gateway.autoscale.observe import Waited, parse

# As a TorchServe wrote it.
_TEXT = """\
# HELP ts_queue_latency_microseconds Torchserve prometheus counter metric with unit: Microseconds
# TYPE ts_queue_latency_microseconds counter
ts_queue_latency_microseconds{model_name="graphsage",model_version="2.0",hostname="vm",} 5398468.25
ts_queue_latency_microseconds{model_name="graphsage",model_version="1.0",hostname="vm",} 6932055.5
# HELP ts_inference_requests_total Torchserve prometheus counter metric with unit: Count
# TYPE ts_inference_requests_total counter
ts_inference_requests_total{model_name="graphsage",model_version="2.0",hostname="vm",} 3315.0
ts_inference_requests_total{model_name="graphsage",model_version="1.0",hostname="vm",} 3189.0
ts_inference_requests_total{model_name="graph",model_version="1.0",hostname="vm",} 200.0
"""


def test_counters_are_by_version() -> None:
    assert parse(_TEXT) == {
        ("graphsage", "2.0"): Waited(3_315, 5_398_468.25),
        ("graphsage", "1.0"): Waited(3_189, 6_932_055.5),
        ("graph", "1.0"): Waited(200, 0),
    }
    assert parse("") == {}


def test_the_mean_is_of_what_came_since() -> None:
    assert Waited(30, 90_000).mean_ms(Waited(10, 50_000)) == 2.0
    assert Waited(10, 50_000).mean_ms(Waited(10, 50_000)) == 0.0
    assert Waited(10, 50_000).mean_ms(None) == 5.0


def test_a_server_that_started_again_counts_from_nothing() -> None:
    assert Waited(10, 50_000).mean_ms(Waited(1_000, 60_000)) == 5.0


def test_what_was_added_is_known_of_each_version() -> None:
    assert Waited(30, 90_000).since(Waited(10, 50_000)) == Waited(20, 40_000)
    assert Waited(30, 90_000).since(None) == Waited(30, 90_000)
    assert Waited(10, 50_000).since(Waited(1_000, 60_000)) == Waited(10, 50_000)
    assert Waited(1, 2) + Waited(10, 20) == Waited(11, 22)
