"""The state of rollouts follows what TorchServe serves, here a fake one."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from gateway.errors import UpstreamError
from gateway.place import Gateway
from gateway.rollout import reconcile, registry
from gateway.rollout.manifest import Model
from gateway.rollout.reconcile import Reconciler
from gateway.rollout.rollouts import now
from gateway.rollout.transitions import start
from gateway.settings import GatewaySettings
from gateway.traffic import WHOLE
from gateway.upstream.client import ModelVersion, Worker
from gateway.upstream.properties import ServerProperties
from tests.servers import free_ports


class FakeServer:
    """What a TorchServe serves, by version, and whether each has a worker."""

    def __init__(self) -> None:
        self.served: dict[str, bool] = {}
        self.default = "1.0"
        self.loaded: list[str] = []
        self.can_load = True

    def client(self, properties: ServerProperties) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def all_versions(self) -> list[ModelVersion]:
        return [self.version("graphsage", version) for version in self.served]

    def version(self, model: str, version: str | None = None) -> ModelVersion:
        name = version or self.default
        workers = (Worker("9000", "READY", 1),) if self.served[name] else ()
        return ModelVersion(model, name, f"graphsage-{name}.mar", 1, 1, 1, 1, workers)

    def set_default(self, model: str, version: str) -> str:
        self.default = version
        return "done"

    def load(self, client: Any, properties: ServerProperties, file_name: str) -> str:
        self.loaded.append(file_name)
        if not self.can_load:
            raise UpstreamError("it cannot start")
        self.served[file_name.removeprefix("graphsage-").removesuffix(".mar")] = True
        return "done"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    for module in (reconcile, registry):
        monkeypatch.setattr(module, "Client", fake.client)
    monkeypatch.setattr(registry, "load", fake.load)
    monkeypatch.setattr(registry, "warm_up", lambda *_: None)
    monkeypatch.setattr(reconcile, "_ABSENT_S", 0.0)
    return fake


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    for version in ("1.0", "2.0"):
        with zipfile.ZipFile(tmp_path / f"graphsage-{version}.mar", "w") as archive:
            manifest = {"model": {"modelName": "graphsage", "modelVersion": version}}
            archive.writestr("MAR-INF/MANIFEST.json", msgspec.json.encode(manifest))
            archive.writestr("signature.json", "{}")
    urls = [f"http://127.0.0.1:{port}" for port in free_ports(3)]
    file = tmp_path / "config.properties"
    properties = ServerProperties(file, *urls, tmp_path, tmp_path / "key_file.json", token_auth=False)
    (port,) = free_ports(1)
    return Gateway(properties, GatewaySettings(admin_port=port))  # where no Envoy listens


@pytest.fixture
def reconciler(gateway: Gateway, server: FakeServer) -> Reconciler:
    return Reconciler(gateway.rollouts, gateway.registry(lambda step: None), gateway.properties)


def _model(gateway: Gateway) -> Model:
    return gateway.rollouts.read().models["graphsage"]


def _states(gateway: Gateway) -> dict[str, tuple[str, int]]:
    return {version.version: (version.state, version.weight) for version in _model(gateway).versions}


def test_what_is_served_is_taken_up_and_the_default_has_all_traffic(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler
) -> None:
    server.served, server.default = {"1.0": True, "2.0": True}, "2.0"
    reconciler.reconcile()
    assert _states(gateway) == {"1.0": ("ready", 0), "2.0": ("ready", WHOLE)}
    assert reconciler.reconcile() == []


def test_what_has_no_worker_yet_is_not(gateway: Gateway, server: FakeServer, reconciler: Reconciler) -> None:
    server.served = {"1.0": False}
    assert reconciler.reconcile() == []
    server.served = {"1.0": True}
    assert reconciler.reconcile() == ["graphsage 1.0 is served, and taken up"]


def test_what_is_gone_and_had_traffic_is_loaded_again(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler
) -> None:
    server.served = {"1.0": True, "2.0": True}
    reconciler.reconcile()
    server.served = {"2.0": True}
    server.default = "2.0"
    reconciler.reconcile()
    assert _states(gateway)["1.0"] == ("missing", WHOLE)
    assert reconciler.load_missing() == ["graphsage 1.0 was missing, and is loaded again"]
    assert _states(gateway)["1.0"] == ("ready", WHOLE)
    reconciler.reconcile()
    assert server.default == "1.0", "the version with the traffic"


def test_what_cannot_be_loaded_is_not_tried_all_the_time(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler
) -> None:
    server.served = {"1.0": True, "2.0": True}
    reconciler.reconcile()
    server.served, server.default, server.can_load = {"2.0": True}, "2.0", False
    reconciler.reconcile()
    with pytest.raises(UpstreamError, match="it cannot start"):
        reconciler.load_missing()
    assert reconciler.load_missing() == []
    assert server.loaded == ["graphsage-1.0.mar"]


def test_what_is_gone_and_had_none_is_let_go(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler
) -> None:
    server.served = {"1.0": True, "2.0": True}
    reconciler.reconcile()
    server.served = {"1.0": True}
    reconciler.reconcile()
    assert _states(gateway)["2.0"] == ("retired", 0)
    assert reconciler.load_missing() == []


def test_a_server_that_only_starts_has_lost_nothing(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.served = {"1.0": True, "2.0": True}
    reconciler.reconcile()
    monkeypatch.setattr(reconcile, "_ABSENT_S", 30.0)
    server.served = {"1.0": False}
    assert reconciler.reconcile() == []
    server.served = {"1.0": True, "2.0": True}
    assert reconciler.reconcile() == []
    assert _states(gateway) == {"1.0": ("ready", WHOLE), "2.0": ("ready", 0)}


def test_the_default_stays_while_a_rollout_is_on(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler
) -> None:
    server.served = {"1.0": True, "2.0": True}
    reconciler.reconcile()
    gateway.rollouts.change("graphsage", lambda model: start(model, "2.0", (9_000,), 600, now()))
    reconciler.reconcile()
    assert server.default == "1.0"


def test_what_was_not_loaded_before_its_registrar_ended_is_forgotten(
    gateway: Gateway, server: FakeServer, reconciler: Reconciler
) -> None:
    server.served = {"1.0": True}
    reconciler.reconcile()
    server.can_load = False
    with pytest.raises(UpstreamError):
        gateway.registry(lambda step: None).register("graphsage-2.0.mar")
    assert "2.0" not in _states(gateway)
    assert _model(gateway).history[-1].reason == "it cannot start"
