"""Carries out what is done to rollouts: in the state on the disk, and then in Envoy."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

import msgspec

from gateway.envoy.control import EnvoyControl
from gateway.rollout.manifest import Manifest, ManifestFile, Model, Version
from gateway.settings import GatewaySettings
from gateway.traffic import ModelTraffic, Traffic, VersionTraffic

Transition = Callable[[Model], Model]


class Rollouts:
    """All rollouts of one server. Several processes may have one, at the same time.

    Args:
        file: the state.
        control: of Envoy, which is told of every change if it runs.
    """

    def __init__(self, file: ManifestFile, control: EnvoyControl, settings: GatewaySettings) -> None:
        self._file = file
        self._control = control
        self._settings = settings

    def read(self) -> Manifest:
        """The present state."""
        return self._file.read()

    def traffic(self) -> Traffic:
        """What Envoy should do now."""
        return traffic_of(self._file.read(), self._settings.models)

    def change(self, name: str, transition: Transition) -> Model:
        """Change the state of a model, and then the traffic.

        The state counts: should we end between the two, or Envoy not be told, whoever runs the gateway does
        it later.

        Raises:
            RolloutError: the change makes no sense now; nothing is changed then.
            GatewayError: the state is changed, but Envoy does not take it.
        """
        with self._file.changing() as write:
            manifest = self._file.read()
            changed = transition(manifest.models.get(name, Model()))
            if changed != manifest.models.get(name):
                manifest = msgspec.structs.replace(manifest, models={**manifest.models, name: changed})
                write(manifest)
            self._carry_out(manifest)
        return changed

    def carry_out(self) -> bool:
        """Let Envoy do what the state says; whether it did something else before."""
        with self._file.changing():
            return self._carry_out(self._file.read())

    def _carry_out(self, manifest: Manifest) -> bool:
        traffic = traffic_of(manifest, self._settings.models)
        if self._control.is_current(traffic):
            return False
        if self._control.is_running():
            self._control.move(traffic)
        return True


def traffic_of(manifest: Manifest, served: Collection[str] = ()) -> Traffic:
    """The traffic that a state stands for.

    Args:
        served: models to which clients get through; none: all.
    """
    models = sorted(manifest.models.items())
    return Traffic(
        tuple(_model_traffic(name, model) for name, model in models if not served or name in served)
    )


def _model_traffic(name: str, model: Model) -> ModelTraffic:
    rollout = model.rollout if model.rollout is not None and model.rollout.is_active else None
    is_shadowed = rollout is not None and not model.weights.get(rollout.candidate)
    return ModelTraffic(
        name,
        tuple(
            VersionTraffic(version.version, version.weight)
            for version in model.versions
            if _can_answer(version)
        ),
        shadow=rollout.candidate if rollout is not None and is_shadowed else None,
        shadow_share=rollout.shadow_share if rollout is not None else 0.0,
        compared_share=1.0 if rollout is not None else 0.0,
    )


def _can_answer(version: Version) -> bool:
    """Who is asked for a version that is missing for now gets a degraded answer, not a refusal."""
    return version.state == "ready" or (version.state == "missing" and version.weight > 0)


def now() -> datetime:
    """The time that changes are noted with, in UTC."""
    return datetime.now(UTC).replace(microsecond=0)
