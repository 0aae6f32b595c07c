"""Where the parts of a gateway are, whoever runs it or changes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gateway.envoy.bootstrap import EnvoyFiles
from gateway.envoy.control import EnvoyControl
from gateway.rollout.manifest import ManifestFile
from gateway.rollout.registry import Registry, Report
from gateway.rollout.rollouts import Rollouts
from gateway.settings import GatewaySettings, read_api_keys, read_settings
from gateway.upstream.properties import ServerProperties

SETTINGS_NAME = "gateway.yaml"


@dataclass(frozen=True)
class Gateway:
    """The gateway of one TorchServe."""

    properties: ServerProperties
    settings: GatewaySettings

    @classmethod
    def of(cls, properties: ServerProperties) -> Gateway:
        """The gateway of a TorchServe, by the `gateway.yaml` beside its configuration.

        Raises:
            GatewayError: that file cannot be used.
        """
        return cls(properties, read_settings(properties.file.parent / SETTINGS_NAME))

    @property
    def folder(self) -> Path:
        """Of the state, and of what Envoy reads."""
        return self.properties.file.parent / "var" / "gateway"

    @property
    def logs(self) -> Path:
        """As TorchServe's."""
        return self.properties.file.parent / "logs"

    @property
    def url(self) -> str:
        """Where clients ask, from this machine."""
        return self.settings.listen.url

    @property
    def title(self) -> str:
        """What to call it."""
        return "the gateway"

    @property
    def command(self) -> list[str]:
        """The arguments with which `hopserve` runs it."""
        return ["gateway", "run", "--ts-config", str(self.properties.file)]

    @property
    def log(self) -> Path:
        """What its controller prints."""
        return self.logs / "controller.log"

    @property
    def envoy_log(self) -> Path:
        """Envoy's warnings."""
        return self.logs / "envoy.log"

    @property
    def lock(self) -> Path:
        """Which the one controller holds."""
        return self.folder / ".controller.lock"

    @cached_property
    def files(self) -> EnvoyFiles:
        """Envoy's."""
        return EnvoyFiles(self.folder / "envoy", self.logs / "gateway.log")

    @cached_property
    def control(self) -> EnvoyControl:
        """Envoy's."""
        return EnvoyControl(self.files, self.settings, self.properties)

    @cached_property
    def rollouts(self) -> Rollouts:
        """The rollouts of the server's models."""
        return Rollouts(ManifestFile(self.folder), self.control, self.settings)

    def registry(self, report: Report) -> Registry:
        """The versions of the server's models."""
        return Registry(self.rollouts, self.properties, report)

    def api_keys(self) -> dict[str, str]:
        """Those of clients, as they are now."""
        keys = self.settings.api_keys
        return read_api_keys(keys, self.properties.file.parent, os.environ.get(keys.variable))
