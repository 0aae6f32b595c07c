"""Asks a container over HTTP, as Kubernetes and others do."""

from __future__ import annotations

import json

from tests.deploy.container import Container
from tests.deploy.kustomize import Manifest


def get(
    container: Container, port: int, path: str, headers: dict[str, str] | None = None, timeout_s: float = 30
) -> tuple[int, str]:
    """Status and text of an answer; the status is 0 where nothing answers."""
    printed = container.python(f"""
        import json, httpx
        try:
            answer = httpx.get("http://127.0.0.1:{port}{path}", headers={headers or {}}, timeout={timeout_s})
            print(json.dumps([answer.status_code, answer.text]))
        except httpx.TransportError as error:
            print(json.dumps([0, str(error)]))
    """)
    status, text = json.loads(printed)
    return status, text


def probe(container: Container, pod: Manifest, kind: str) -> int:
    """The status that a probe gets, which asks without a key.

    Args:
        pod: the container, as its manifest has it.
        kind: `startupProbe`, `readinessProbe` or `livenessProbe`.
    """
    asked = pod[kind]["httpGet"]
    (port,) = (port["containerPort"] for port in pod["ports"] if port["name"] == asked["port"])
    return get(container, port, asked["path"], timeout_s=pod[kind]["timeoutSeconds"])[0]
