"""The example, packed and served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from archive.pack import PackPlan, pack
from tests.conftest import Example
from tests.servers import Server, running


@pytest.fixture(scope="session")
def archive_of(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The example, packed as any version and with any change of the plan."""
    store = tmp_path_factory.mktemp("store")

    def make(version: str = "1.0", **changes: Any) -> Path:
        plan = {"name": "graphsage", "model_folder": example.export, "graph_folder": example.graph} | changes
        return pack(PackPlan(version=version, **plan), store)

    return make


@pytest.fixture(scope="session")
def server(archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The example, for tests that change nothing of it."""
    with running(tmp_path_factory.mktemp("ts"), archive_of()) as started:
        yield started


@pytest.fixture
def run_server(tmp_path: Path) -> Callable[..., AbstractContextManager[Server]]:
    """Start a server that a test may do anything to."""
    return lambda *archives: running(tmp_path / "ts", *archives)
