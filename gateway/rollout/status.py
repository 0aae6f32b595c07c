"""Asks a running controller what is going on."""

from __future__ import annotations

from typing import Any

import httpx

from gateway.envoy.forms import LOOPBACK

_TIMEOUT_S = 2.0


def controller_status(port: int) -> dict[str, Any] | None:
    """What the controller says; none if none answers."""
    try:
        answer = httpx.get(f"http://{LOOPBACK}:{port}/status", timeout=_TIMEOUT_S)
        status: dict[str, Any] = answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None
    return status
