"""A master of a graph's cluster is killed while clients ask a gateway for answers from there."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from handler.graph.cluster.layout import Keys
from handler.graph.cluster.push import push
from handler.graph.cluster.shards import Shards
from handler.graph.snapshot import Snapshot
from tests.clients import Clients
from tests.clustered import place_of, same
from tests.clusters import Cluster, Node, running_cluster
from tests.conftest import Example
from tests.gateways import Front, fronted
from tests.live_servers import until

_RATE = 200
_AFTER = 600  # answers in a row that must be right in the end
_PART = 200  # nodes of one request
_FEW = {"num_hops": 1, "num_neighbors": 2}  # so that some answers do not need each master
_log = logging.getLogger(__name__)


@dataclass
class _Heard:
    """What came, beside what it should be.

    Args:
        wanted: the row of each node, as it was before.
    """

    wanted: dict[int, Any]
    came: list[tuple[float, Any]] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    right_in_a_row: int = 0

    def __call__(self, node: int, status: Any, content: Any) -> None:
        self.came.append((time.monotonic(), status))
        self.right_in_a_row = self.right_in_a_row + 1 if status == 200 else 0
        if status == 503:
            self.codes[content["error"]["code"]] += 1
        elif status != 200 or not same(_said(content), self.wanted[node]):
            self.wrong.append((node, status, content))


def _said(row: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on when it was asked."""
    return {name: value for name, value in row.items() if name != "age_ms"}


@pytest.fixture(scope="module")
def snapshot(example: Example) -> Snapshot:
    return Snapshot.open(example.graph)


@pytest.fixture(scope="module")
def cluster(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), replicas=1) as started:
        shards = Shards(started.url)
        push(snapshot, shards, "digits")
        shards.close()
        started.wait_for_replicas()
        yield started


@pytest.fixture(scope="module")
def front(
    cluster: Cluster, archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    settings = {"graph": place_of(cluster, "digits"), "hot_bytes": 0}
    folder = tmp_path_factory.mktemp("front")
    archive = archive_of("1.0", settings=settings)
    with fronted(folder / "ts", archive, settings={"breaker": {"rest_s": 1, "max_rest_s": 2}}) as started:
        yield started


def _wanted(front: Front, num_nodes: int) -> dict[int, Any]:
    """The row of each node as it is now."""
    rows: list[Any] = []
    for start in range(0, num_nodes, _PART):
        nodes = list(range(start, min(start + _PART, num_nodes)))
        rows += front.ask({"node_ids": nodes} | _FEW).json()["predictions"]
    return {row["node_id"]: _said(row) for row in rows}


def _killed_meanwhile(cluster: Cluster, front: Front, master: Node, heard: _Heard) -> Clients:
    """What clients got while a master was killed, until all is well again."""
    with Clients(front, rate=_RATE, options=_FEW, heard=heard) as clients:
        clients.wait_for(2 * _RATE)
        assert clients.failures == []
        killed_s = time.monotonic()
        master.kill()
        cluster.wait_for_failover(master)
        failed_over_s = time.monotonic()
        heard.right_in_a_row = 0
        until(lambda: heard.right_in_a_row >= _AFTER)
    since = [(when - killed_s, status) for when, status in heard.came if when > killed_s]
    last_s = max((when for when, status in since if status != 200), default=0.0)
    refused = [status != 200 for when, status in since if when <= last_s]
    _log.info(
        "failover took %.1f s; of %d answers %s were refused, the last at %.1f s, and %.0f%% until then",
        failed_over_s - killed_s,
        len(heard.came),
        dict(heard.codes),
        last_s,
        100 * sum(refused) / max(1, len(refused)),
    )
    return clients


def test_a_master_is_killed_and_its_replica_answers_at_once_where_nothing_has_changed(
    cluster: Cluster, front: Front, snapshot: Snapshot
) -> None:
    heard = _Heard(_wanted(front, snapshot.num_nodes))
    clients = _killed_meanwhile(cluster, front, cluster.masters[1], heard)
    assert heard.wrong == []
    assert clients.failures == []


def test_a_master_is_killed_and_until_its_replica_takes_over_some_answers_are_refused(
    cluster: Cluster, front: Front, snapshot: Snapshot
) -> None:
    """In a graph that has changed, of which a replica may not know."""
    shards = Shards(cluster.url)
    version = shards.get(Keys.current("digits"))
    assert version is not None
    changes = Keys("digits", version.decode()).changes
    change = ("after", 0, "seq", 1, "num_nodes", snapshot.num_nodes, "nodes", b"")
    shards.ask([("XADD", changes, "*", *change)])
    shards.close()
    until(lambda: front.ask({"node_id": 0}).json()["graph"]["seq"] == 1)
    heard = _Heard(_wanted(front, snapshot.num_nodes))
    clients = _killed_meanwhile(cluster, front, cluster.masters[2], heard)
    assert heard.wrong == []
    assert set(clients.statuses) == {200, 503}
    assert set(heard.codes) <= {"not_ready"}  # the version goes on for all other nodes
