"""Stores for the logs of the tests: a folder, and a Valkey server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from handler.log.protocol import Log
from tests.conftest import StartServer, url_of
from tests.handler.log.stores import LmdbStore, RedisStore, Store


@pytest.fixture(scope="session", params=["lmdb", "redis"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    if request.param == "lmdb":
        return LmdbStore(str(tmp_path_factory.mktemp("lmdb")))
    start: StartServer = request.getfixturevalue("start_server")
    return RedisStore(url_of(start()))


_numbers = itertools.count()


@pytest.fixture
def graph_id() -> str:
    """The id of a graph that has no log yet."""
    return f"graph-{next(_numbers)}"


@pytest.fixture
def log(store: Store, graph_id: str) -> Iterator[Log]:
    """An empty log."""
    opened = store.open(graph_id)
    yield opened
    opened.close()
