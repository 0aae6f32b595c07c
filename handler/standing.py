"""Says in metrics how a graph stands."""

from __future__ import annotations

from handler import metrics
from handler.graph.views import Standing


def gauges_of(standing: Standing) -> dict[metrics.Metric, float]:
    """The gauges of a graph; without that of the lag where it is not known."""
    gauges: dict[metrics.Metric, float] = {
        metrics.SEQ: standing.seq,
        metrics.OVERLAY_MUTATIONS: standing.overlay_mutations,
        metrics.OVERLAY_BYTES: standing.overlay_bytes,
        metrics.SNAPSHOT_AGE: standing.snapshot_age_s,
        metrics.GRAPH_NODES: standing.num_nodes,
    }
    if standing.lag is not None:
        gauges[metrics.LAG] = standing.lag
    return gauges
