"""Real gateways in front of real servers, on free ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from click.testing import CliRunner

import handler
from gateway.place import Gateway
from gateway.process import start_gateway
from gateway.rollout.manifest import Model
from scripts.cli.main import hopserve
from tests.servers import Server, running, write_settings

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Front:
    """A gateway, and the server behind it."""

    gateway: Gateway
    server: Server

    def url(self, path: str = "/v1/graphsage/predict") -> str:
        return self.gateway.url + path

    def ask(
        self, request: Any, path: str = "/v1/graphsage/predict", headers: Mapping[str, str] = NO_SETTINGS
    ) -> httpx.Response:
        return httpx.post(self.url(path), json=request, headers=dict(headers), timeout=60)

    def model(self, name: str = "graphsage") -> Model:
        """The state of a model."""
        return self.gateway.rollouts.read().models[name]

    def weights(self) -> dict[str, int]:
        return self.model().weights

    def hopserve(self, *arguments: str) -> str:
        """Run a command, which must succeed; returns what it prints."""
        file = str(self.server.properties.file)
        result = CliRunner().invoke(hopserve, [*arguments, "--ts-config", file], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def add(self, archive: Path) -> None:
        """Put an archive into the model store, and register it."""
        shutil.copy(archive, self.server.properties.model_store)
        self.hopserve("rollout", "register", archive.name)


@contextmanager
def fronted(folder: Path, *archives: Path, settings: Mapping[str, Any] = NO_SETTINGS) -> Iterator[Front]:
    """A gateway and a server of these archives, until the end of the block."""
    with running(folder, *archives) as server:
        write_settings(folder, settings)
        gateway = Gateway.of(server.properties)
        start_gateway(gateway)  # which is killed together with the server
        yield Front(gateway, server)


def changed_handler(folder: Path, code: str) -> Path:
    """A copy of the handler package whose model handler does something more.

    Args:
        code: the methods of a class below the model handler; `json`, `time` and `random` are imported.
    """
    package = folder / "handler"
    shutil.copytree(Path(handler.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "entry.py").write_text(
        "import json, random, time\nfrom handler.torchserve import ModelHandler\n\n"
        f"class Handler(ModelHandler):\n{code}"
    )
    return package
