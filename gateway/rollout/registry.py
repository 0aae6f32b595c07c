"""Registers versions with TorchServe and unregisters them, so that no request is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import xxhash

from gateway.errors import UpstreamError
from gateway.rollout import transitions
from gateway.rollout.manifest import Manifest, Model, Version, VersionState
from gateway.rollout.rollouts import Rollouts, now
from gateway.upstream.client import Client, ModelVersion
from gateway.upstream.loading import find_archive, load
from gateway.upstream.process import warm_up
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import StoredArchive

Report = Callable[[str], None]
_LISTED_AFTER_S = 60.0


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
            self._load(archive)
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
        self._rollouts.change(name, lambda model: transitions.retire(model, version, now()))
        with Client(self._properties) as client:
            self._report(f"waiting for requests in flight at {name} {version}")
            client.drain(name, version, drain_timeout_s)
            client.unregister(name, version)

    def reconcile(self) -> list[str]:
        """Bring the state in line with what TorchServe serves; returns what was done, in words.

        Versions that someone else registered are taken up, those that did not come up are forgotten, and
        those that are
        no longer served are marked: `load_missing` loads again what had traffic.

        Raises:
            UpstreamError: TorchServe does not answer; nothing is concluded from that.
        """
        with Client(self._properties) as client:
            served = {
                (version.model_name, version.model_version): version for version in client.all_versions()
            }
            defaults = {name: client.version(name).model_version for name, _ in served}
        done: list[str] = []
        manifest = self._rollouts.read()
        for (name, version), state in served.items():
            done += self._take_up(manifest, name, version, state, is_default=defaults[name] == version)
        for name, model in manifest.models.items():
            for known in model.versions:
                if known.state in {"ready", "loading"} and (name, known.version) not in served:
                    done += self._miss(name, known)
        return done

    def load_missing(self) -> list[str]:
        """Load what should be served and is not; returns what was done, in words."""
        done = []
        for name, model in self._rollouts.read().models.items():
            for known in model.versions:
                if known.state == "missing":
                    self._load(find_archive(self._properties, known.archive))
                    self._become_ready(name, known.version)
                    done.append(f"{name} {known.version} was missing, and is loaded again")
        return done

    def _take_up(
        self, manifest: Manifest, name: str, version: str, state: ModelVersion, *, is_default: bool
    ) -> list[str]:
        known = manifest.models.get(name, Model()).find(version)
        if not state.num_ready or (known is not None and known.state in {"ready", "retired"}):
            return []
        if known is not None:
            self._become_ready(name, version)
            return [f"{name} {version} is ready"]
        try:
            archive = find_archive(self._properties, Path(state.model_url).name)
        except UpstreamError:
            return []
        if not archive.is_model:
            return []
        described = describe(archive, self._properties.model_store)
        self._rollouts.change(name, lambda model: transitions.adopt(model, described, is_default=is_default))
        return [f"{name} {version} is served, and taken up"]

    def _miss(self, name: str, known: Version) -> list[str]:
        if known.state == "loading":
            # Whoever registered it may be about to: a minute is more than TorchServe takes to list it.
            if (now() - known.registered_at).total_seconds() < _LISTED_AFTER_S:
                return []
            reason = "it was not loaded before whoever registered it ended"
            self._rollouts.change(name, lambda model: transitions.forget(model, known.version, now(), reason))
            return [f"{name} {known.version}: {reason}"]
        state: VersionState = "missing" if known.weight else "retired"
        reason = "TorchServe does not serve it any more"
        self._rollouts.change(
            name, lambda model: transitions.become(model, known.version, state, now(), reason)
        )
        return [f"{name} {known.version} is {state}: {reason}"]

    def _become_ready(self, name: str, version: str) -> None:
        self._rollouts.change(name, lambda model: transitions.become(model, version, "ready", now()))

    def _load(self, archive: StoredArchive) -> None:
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
