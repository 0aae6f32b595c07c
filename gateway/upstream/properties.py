"""Reads the `config.properties` that TorchServe was started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import javaproperties

from gateway.errors import UpstreamError

MAX_REQUEST_BYTES = 6_553_500  # TorchServe's own default


@dataclass(frozen=True)
class ServerProperties:
    """Where a TorchServe listens and keeps its files.

    Args:
        file: the configuration itself.
        inference_url, management_url, metrics_url: without a slash at the end.
        model_store: folder of the `.mar` files.
        key_file: where TorchServe writes its keys: the folder in which it was started, which is that of
            the configuration.
        token_auth: whether requests need a key.
        max_request_bytes: how large a request's body may be.
    """

    file: Path
    inference_url: str
    management_url: str
    metrics_url: str
    model_store: Path
    key_file: Path
    token_auth: bool
    max_request_bytes: int = MAX_REQUEST_BYTES


def read_properties(file: Path) -> ServerProperties:
    """Read a configuration; one that is missing or cannot be understood is an `UpstreamError`."""
    try:
        with file.open(encoding="utf-8") as lines:
            values = javaproperties.load(lines)
    except OSError as error:
        raise UpstreamError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UpstreamError(f"{file}: not a properties file: {error}") from None
    folder = file.resolve().parent
    return ServerProperties(
        file=file.resolve(),
        inference_url=values.get("inference_address", "http://127.0.0.1:8080").rstrip("/"),
        management_url=values.get("management_address", "http://127.0.0.1:8081").rstrip("/"),
        metrics_url=values.get("metrics_address", "http://127.0.0.1:8082").rstrip("/"),
        model_store=folder / values.get("model_store", "model_store"),
        key_file=folder / "key_file.json",
        token_auth=values.get("disable_token_authorization", "false").lower() != "true",
        max_request_bytes=_bytes_of(file, values.get("max_request_size", "")),
    )


def _bytes_of(file: Path, text: str) -> int:
    if text and not text.isdecimal():
        raise UpstreamError(f"{file}: max_request_size={text} is no number of bytes")
    return int(text or MAX_REQUEST_BYTES)
