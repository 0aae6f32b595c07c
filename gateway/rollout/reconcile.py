"""Brings the state of rollouts and what TorchServe serves in line, whatever became of either."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import UpstreamError
from gateway.rollout import transitions
from gateway.rollout.manifest import Model, Version, VersionState
from gateway.rollout.observe import VersionName
from gateway.rollout.registry import Registry, describe
from gateway.rollout.rollouts import Rollouts, now
from gateway.upstream.client import Client, ModelVersion
from gateway.upstream.loading import find_archive
from gateway.upstream.properties import ServerProperties
from gateway.upstream.store import remember_default

# A server that starts lists its versions one after the other, as they are loaded.
_ABSENT_S = 30.0
_RETRY_S = 60.0


class Reconciler:
    """Looks again and again; one process at a time has one.

    Args:
        registry: by which versions are loaded.
    """

    def __init__(self, rollouts: Rollouts, registry: Registry, properties: ServerProperties) -> None:
        self._rollouts = rollouts
        self._registry = registry
        self._properties = properties
        self._absent_since_s: dict[VersionName, float] = {}
        self._tried_s: dict[VersionName, float] = {}

    def reconcile(self) -> list[str]:
        """Look once; returns what was done, in words.

        Versions that someone else registered are taken up, without traffic unless nobody has any. Those that
        did not come up are forgotten, and those that are no longer served are marked: `load_missing` loads
        again what had traffic. The version with the most traffic is TorchServe's default, while no rollout is
        on.

        Raises:
            UpstreamError: TorchServe does not answer; nothing is concluded from that.
        """
        with Client(self._properties) as client:
            served = {
                (version.model_name, version.model_version): version for version in client.all_versions()
            }
            defaults = {name: client.version(name).model_version for name in {name for name, _ in served}}
        done: list[str] = []
        for (name, version), state in served.items():
            done += self._take_up(name, version, state, is_default=defaults[name] == version)
        models = self._rollouts.read().models
        for name, model in models.items():
            for known in model.versions:
                done += self._look_for(name, known, served)
        for name, version in defaults.items():
            done += self._keep_default(name, models.get(name, Model()), version, served)
        return done

    def load_missing(self) -> list[str]:
        """Load what should be served and is not; returns what was done, in words.

        Raises:
            UpstreamError: it cannot be loaded; it is tried again a minute later.
        """
        done = []
        for name, model in self._rollouts.read().models.items():
            for known in model.versions:
                if known.state == "missing" and self._is_due((name, known.version)):
                    self._registry.load(find_archive(self._properties, known.archive))
                    self._become(name, known.version, "ready")
                    done.append(f"{name} {known.version} was missing, and is loaded again")
        return done

    def _take_up(self, name: str, version: str, state: ModelVersion, *, is_default: bool) -> list[str]:
        known = self._rollouts.read().models.get(name, Model()).find(version)
        if not state.num_ready or (known is not None and known.state in {"ready", "retired"}):
            return []
        if known is not None:
            self._become(name, version, "ready")
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

    def _look_for(self, name: str, known: Version, served: Mapping[VersionName, ModelVersion]) -> list[str]:
        key = name, known.version
        if key in served or known.state not in {"ready", "loading"}:
            self._absent_since_s.pop(key, None)
            return []
        since_s = self._absent_since_s.setdefault(key, time.monotonic())
        if time.monotonic() - since_s < _ABSENT_S:
            return []
        if known.state == "loading":
            reason = "it was not loaded before whoever registered it ended"
            self._rollouts.change(name, lambda model: transitions.forget(model, known.version, now(), reason))
            return [f"{name} {known.version}: {reason}"]
        state: VersionState = "missing" if known.weight else "retired"
        reason = "TorchServe does not serve it any more"
        self._become(name, known.version, state, reason)
        return [f"{name} {known.version} is {state}: {reason}"]

    def _keep_default(
        self, name: str, model: Model, default: str, served: Mapping[VersionName, ModelVersion]
    ) -> list[str]:
        is_moving = model.rollout is not None and model.rollout.is_active
        if is_moving or not model.weights:
            return []
        main = max(model.weights, key=lambda version: model.weights[version])
        if main == default or (name, main) not in served:
            return []
        with Client(self._properties) as client:
            client.set_default(name, main)
        remember_default(self._properties.model_store, name, main)
        return [f"{name} {main} is the default now"]

    def _become(self, name: str, version: str, state: VersionState, reason: str = "") -> None:
        self._rollouts.change(name, lambda model: transitions.become(model, version, state, now(), reason))

    def _is_due(self, key: VersionName) -> bool:
        """Whether a version may be loaded: one that cannot is not tried all the time."""
        tried_s = self._tried_s.get(key)
        if tried_s is not None and time.monotonic() - tried_s < _RETRY_S:
            return False
        self._tried_s[key] = time.monotonic()
        return True
