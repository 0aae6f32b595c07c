"""One cluster for all tests of graphs in clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from handler.graph.cluster.shards import Shards
from tests.clusters import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def shards(cluster: Cluster) -> Iterator[Shards]:
    opened = Shards(cluster.url)
    yield opened
    opened.close()
