"""Registers versions with TorchServe and unregisters them, so that no request is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import xxhash

from gateway.rollout import transitions
from gateway.rollout.manifest import Version
from gateway.rollout.rollouts import Rollouts, now
from gateway.upstream.client import Client
from gateway.upstream.loading import find_archive, load
from gateway.upstream.process import warm_up
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import StoredArchive, remember_default

Report = Callable[[str], None]


class Registry:
    """The versions of one TorchServe.

    Args:
        report: told of each step.
    """

    def __init__(self, rollouts: Rollouts, properties: ServerProperties, report: Report) -> None:
        self._rollouts = rollouts
        self._properties = properties
        self._report = report

    def register(self, file_name: str) -> str:
        """Load an archive of the model store, warm it up, and let it be asked by its version; it has no
        weight yet.

        Returns the version.

        Raises:
            RolloutError: it is registered already.
            UpstreamError: it is no archive of ours, or its workers cannot start; says why.
        """
        archive = find_archive(self._properties, file_name)
        version = describe(archive, self._properties.model_store)
        self._rollouts.change(archive.model, lambda model: transitions.register(model, version))
        self._report(f"loading {file_name}")
        try:
            self.load(archive)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self._rollouts.change(
                archive.model, lambda model: transitions.forget(model, archive.version, now(), reason)
            )
            raise
        self._rollouts.change(
            archive.model, lambda model: transitions.become(model, archive.version, "ready", now())
        )
        return archive.version

    def unregister(self, name: str, version: str, drain_timeout_s: float) -> None:
        """Move a version out of reach, wait until it has answered everything, and remove it.

        Raises:
            RolloutError: it has traffic.
            UpstreamError: it is still answering when the time is up: it stays, out of reach.
        """
        model = self._rollouts.change(name, lambda model: transitions.retire(model, version, now()))
        with Client(self._properties) as client:
            self._report(f"waiting for requests in flight at {name} {version}")
            client.drain(name, version, drain_timeout_s)
            if model.weights and client.version(name).model_version == version:
                # TorchServe removes no default, and may not know yet that another has the traffic by now.
                main = max(model.weights, key=model.weights.__getitem__)
                client.set_default(name, main)
                remember_default(self._properties.model_store, name, main)
            client.unregister(name, version)

    def load(self, archive: StoredArchive) -> None:
        """Let TorchServe load an archive, and warm it up.

        Raises:
            UpstreamError: its workers cannot start; says why.
        """
        with Client(self._properties) as client:
            load(client, self._properties, archive.file_name)
            warm_up(client, [client.version(archive.model, archive.version)])


def describe(archive: StoredArchive, model_store: Path) -> Version:
    """What is noted of an archive when it is registered."""
    return Version(
        version=archive.version,
        archive=archive.file_name,
        checksum=xxhash.xxh3_128_hexdigest((model_store / archive.file_name).read_bytes()),
        metrics=dict(archive.metrics),
        registered_at=now(),
    )
