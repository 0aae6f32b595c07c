"""Renders the key of TorchServe as Envoy reads it."""

from __future__ import annotations

from gateway.envoy.forms import Json, typed

UPSTREAM_KEY = "upstream-key"


def render_key(key: str) -> Json:
    """A secret that holds the value of the header `Authorization`."""
    return typed(
        "extensions.transport_sockets.tls.v3.Secret",
        name=UPSTREAM_KEY,
        generic_secret={"secret": {"inline_string": f"Bearer {key}"}},
    )
