"""Scaling a version whose TorchServe fails at it, or says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Refused
from gateway.upstream import client as client_module
from gateway.upstream.client import Client, ModelVersion, Worker
from gateway.upstream.properties import ServerProperties

_URL = "http://127.0.0.1:9"


def _client(monkeypatch: pytest.MonkeyPatch, folder: Path, num_workers: int, status: int) -> Client:
    """Of a server that answers a change with a status, and has so many workers then."""
    workers = tuple(Worker(str(number), "READY", number) for number in range(1, num_workers + 1))
    state = ModelVersion("m", "1.0", "m.mar", num_workers, num_workers, 1, 1, workers)

    def refuse(*_: Any, **__: Any) -> None:
        raise Refused(status, "job is null")

    properties = ServerProperties(
        folder / "c", _URL, _URL, _URL, folder, folder / "key_file.json", token_auth=False
    )
    monkeypatch.setattr(Client, "version", lambda *_: state)
    monkeypatch.setattr(Client, "drain", lambda *_: None)
    monkeypatch.setattr(Client, "_manage", refuse)
    monkeypatch.setattr(client_module, "_SETTLE_S", 0.1)
    return Client(properties)


def test_a_worker_that_went_in_spite_of_an_error_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _client(monkeypatch, tmp_path, num_workers=1, status=500) as client:
        assert client.scale("m", "1.0", 1, 1.0) == "Workers scaled to 1 for model: m"


@pytest.mark.parametrize(("num_workers", "status"), [(2, 500), (1, 404)])
def test_what_really_failed_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_workers: int, status: int
) -> None:
    with (
        _client(monkeypatch, tmp_path, num_workers, status) as client,
        pytest.raises(Refused, match=f"TorchServe answered {status}: job is null"),
    ):
        client.scale("m", "1.0", 1, 1.0)
