"""Opens a graph wherever its place is: in a folder of this machine, or in a cluster."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from handler.errors import GraphUnavailable
from handler.graph.follower import open_source
from handler.graph.views import Source

_CLUSTERS = frozenset({"redis+cluster", "rediss+cluster"})


def is_cluster(place: str) -> bool:
    """Whether a graph's place is one in a cluster, such as redis+cluster://HOST:6379/NAME."""
    return urlsplit(place).scheme in _CLUSTERS


def source_of(place: str, *, hot_bytes: int = 0, max_wait_s: float = 0.2) -> Source:
    """The graph at a place: of a folder, or of a cluster.

    Args:
        hot_bytes: memory for the nodes of one in a cluster that are read most.
        max_wait_s: how long a reading may wait for the mutation that it asks for.

    Raises:
        GraphUnavailable: it lies in a cluster, and the package for that is not installed.
    """
    if not is_cluster(place):
        return open_source(Path(place), max_wait_s=max_wait_s)
    try:
        from handler.graph.cluster.views import cluster_source
    except ImportError:
        raise GraphUnavailable(
            "a graph in a cluster needs the packages redis and pybreaker: pip install 'hopserve[redis]'"
        ) from None
    return cluster_source(place, hot_bytes, max_wait_s)
