"""Loads archives of the model store into a running TorchServe."""

from __future__ import annotations

import time

from gateway.errors import Refused, UpstreamError
from gateway.upstream.client import Client
from gateway.upstream.process import load_failure, log_bytes
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import StoredArchive, read_archive

_REASON_TIMEOUT_S = 3.0
_POLL_S = 0.1
_FAILED = 500


def find_archive(properties: ServerProperties, file_name: str) -> StoredArchive:
    """An archive of the model store.

    Raises:
        UpstreamError: there is none of this name, or it is none.
    """
    path = properties.model_store / file_name
    if "/" in file_name or not path.is_file():
        raise UpstreamError(f"{file_name} is not a file in the model store {properties.model_store}")
    return read_archive(path)


def load(client: Client, properties: ServerProperties, file_name: str) -> str:
    """Register an archive of the model store; returns TorchServe's words when its workers are ready.

    Raises:
        UpstreamError: its workers cannot start; says why.
    """
    before_bytes = log_bytes(properties)
    try:
        return client.register(file_name)
    except Refused as refusal:
        reason = _reason(properties, before_bytes) if refusal.status == _FAILED else None
        if reason is None:
            raise
        raise UpstreamError(reason) from None


def _reason(properties: ServerProperties, after_log_bytes: int) -> str | None:
    """Why workers did not start; TorchServe says it only in its log, and a little later."""
    deadline = time.monotonic() + _REASON_TIMEOUT_S
    while time.monotonic() < deadline:
        reason = load_failure(properties, after_log_bytes)
        if reason:
            return reason
        time.sleep(_POLL_S)
    return None
