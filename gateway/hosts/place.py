"""Where the parts of a balancer are, whoever runs it or changes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gateway.envoy.bootstrap import EnvoyFiles
from gateway.hosts.control import BalancerControl
from gateway.hosts.settings import HostsSettings, read_host_key, read_hosts
from gateway.settings import read_api_keys

HOSTS_NAME = "hosts.yaml"


@dataclass(frozen=True)
class Balancer:
    """What stands in front of several hosts.

    Args:
        file: the settings; everything else is in its folder.
    """

    file: Path
    settings: HostsSettings

    @classmethod
    def of(cls, file: Path) -> Balancer:
        """The balancer of a file of hosts.

        Raises:
            GatewayError: the file cannot be used.
        """
        return cls(file.resolve(), read_hosts(file))

    @property
    def title(self) -> str:
        """What to call it."""
        return "the balancer"

    @property
    def command(self) -> list[str]:
        """The arguments with which `hopserve` runs it."""
        return ["balancer", "run", "--hosts", str(self.file)]

    @property
    def log(self) -> Path:
        """What the process prints that runs it."""
        return self._logs / "balancer-run.log"

    @property
    def envoy_log(self) -> Path:
        """Envoy's warnings."""
        return self._logs / "balancer-envoy.log"

    @property
    def url(self) -> str:
        """Where clients ask, from this machine."""
        return self.settings.listen.url

    @property
    def lock(self) -> Path:
        """Which the one process holds that runs it."""
        return self.folder / ".lock"

    @property
    def folder(self) -> Path:
        """Of what Envoy reads."""
        return self.file.parent / "var" / "balancer"

    @cached_property
    def control(self) -> BalancerControl:
        """Envoy's."""
        files = EnvoyFiles(self.folder / "envoy", self._logs / "balancer.log")
        return BalancerControl(files, self.settings, self.file.parent)

    def api_keys(self) -> dict[str, str]:
        """Those of clients, as they are now."""
        keys = self.settings.api_keys
        return read_api_keys(keys, self.file.parent, os.environ.get(keys.variable))

    def host_key(self) -> str | None:
        """For which the hosts ask, if they do."""
        return read_host_key(self.settings.host_key, self.file.parent)

    @property
    def _logs(self) -> Path:
        return self.file.parent / "logs"
