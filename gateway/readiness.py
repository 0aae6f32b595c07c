"""Tells whether a server can be sent requests, and tells loading and draining from what is broken."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from gateway.envoy.admin import Admin
from gateway.errors import GatewayError, UpstreamError
from gateway.place import Gateway
from gateway.rollout.manifest import Manifest
from gateway.upstream.client import Client
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import StoredArchive, list_archives
from gateway.upstream.tokens import Tokens

Kind = Literal["ready", "loading", "draining", "broken"]
_MARK_NAME = ".draining"
_TIMEOUT_S = 5.0
_POLL_S = 0.2
_QUIET_POLLS = 3


@dataclass(frozen=True)
class Readiness:
    """What a server can do now.

    Args:
        kind: only `ready` can be sent requests; of the others only `broken` does not end by itself.
        reason: why, in a few words.
    """

    kind: Kind
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


def look(gateway: Gateway, *, with_gateway: bool) -> Readiness:
    """Look at a server once.

    It is ready when each model of the store has a worker for the version that gets most of its requests, and
    Envoy listens. So a version that is loaded beside it, or a worker more, does not take it out of service.

    Args:
        with_gateway: whether Envoy must be there; else TorchServe alone counts.
    """
    if is_draining(gateway):
        return Readiness("draining", "a stop is coming")
    try:
        broken = _given_up(gateway.properties)
        missing = _missing(gateway)
    except UpstreamError as error:
        return Readiness("broken", str(error))
    if broken:
        return Readiness("broken", broken)
    if missing:
        return Readiness("loading", f"no worker of {', '.join(missing)} is ready")
    if with_gateway and not gateway.control.is_running():
        return Readiness("broken", "the gateway does not listen")
    return Readiness("ready")


def is_draining(gateway: Gateway) -> bool:
    """Whether a stop is coming."""
    return _mark(gateway).exists()


def is_ready_again(gateway: Gateway) -> None:
    """Forget that a stop was coming, because a start came."""
    if is_draining(gateway):
        _mark(gateway).unlink(missing_ok=True)
        with Admin(gateway.settings.admin_port) as admin:
            if admin.is_answering():
                admin.keep_connections()


def drain(gateway: Gateway, at_least_s: float, timeout_s: float) -> None:
    """Be not ready from now on; return when nothing is in flight, or waits.

    Requests are answered as before, so that none is lost while those who send them learn not to.

    Args:
        at_least_s: how long they may take for that.

    Raises:
        GatewayError: something is still in flight when the time is up.
    """
    began_s = time.monotonic()
    gateway.folder.mkdir(parents=True, exist_ok=True)
    _mark(gateway).touch()
    with Admin(gateway.settings.admin_port) as admin, Client(gateway.properties) as client:
        has_gateway = admin.is_answering()
        if has_gateway:
            admin.close_connections()
        quiet = 0
        while quiet < _QUIET_POLLS or time.monotonic() < began_s + at_least_s:
            in_flight = (admin.num_active() if has_gateway else 0) + _pending(client)
            quiet = 0 if in_flight else quiet + 1
            if time.monotonic() > began_s + timeout_s:
                raise GatewayError(f"{in_flight} requests are still in flight after {timeout_s:.0f} s")
            time.sleep(_POLL_S)


def _mark(gateway: Gateway) -> Path:
    return gateway.folder / _MARK_NAME


def _given_up(properties: ServerProperties) -> str | None:
    """TorchServe is healthy while models load; no more, once it has given up starting a worker."""
    url = f"{properties.inference_url}/ping"
    try:
        answer = httpx.get(url, headers=Tokens(properties).headers("inference"), timeout=_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise UpstreamError(f"TorchServe does not answer at {url}: {error}") from None
    if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
        return None
    return "TorchServe has given up starting a worker; model_log.log says why"


def _missing(gateway: Gateway) -> list[str]:
    """The versions that should answer most requests of their models, and have no worker."""
    wanted = most_asked(list_archives(gateway.properties.model_store), gateway.rollouts.read())
    with Client(gateway.properties) as client:
        served = client.all_versions()
    ready = {(version.model_name, version.model_version) for version in served if version.num_ready}
    return [f"{model} {version}" for model, version in sorted(wanted - ready)]


def most_asked(archives: list[StoredArchive], manifest: Manifest) -> set[tuple[str, str]]:
    """For each model, the version that gets most of its requests.

    Args:
        archives: of the model store; of each model its default version comes first.
        manifest: the rollouts, which know of some models.
    """
    versions: dict[str, str] = {}
    for archive in archives:
        model = manifest.models.get(archive.model)
        known = model.find(archive.version) if model is not None else None
        if known is None or known.state != "retired":
            versions.setdefault(archive.model, archive.version)
    for name, model in manifest.models.items():
        if model.weights:
            versions[name] = max(model.weights, key=model.weights.__getitem__)
    return set(versions.items())


def _pending(client: Client) -> int:
    try:
        return sum(version.job_queue_status.pending_requests for version in client.all_versions())
    except UpstreamError:
        return 0  # it does not even listen
