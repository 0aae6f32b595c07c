"""Tells the Envoy of a balancer what to do, through the files that it watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.envoy import resources
from gateway.envoy.admin import Admin
from gateway.envoy.bootstrap import EnvoyFiles
from gateway.envoy.configured import ConfiguredEnvoy
from gateway.envoy.forms import Json, typed
from gateway.envoy.hosts import Spreading, render_affinity, render_host_routes, render_hosts, render_ready
from gateway.envoy.listener import render_listener
from gateway.hosts.settings import HostsSettings
from gateway.upstream.properties import MAX_REQUEST_BYTES


class BalancerControl(ConfiguredEnvoy):
    """The files of a balancer's Envoy.

    Args:
        files: where they are.
        folder: in which the files are that settings name.
    """

    def __init__(self, files: EnvoyFiles, settings: HostsSettings, folder: Path) -> None:
        super().__init__(files, settings, {})
        self._settings = settings
        self._folder = folder

    def write_all(self, api_keys: Mapping[str, str], host_key: str | None) -> None:
        """Write every file anew, for an Envoy that is about to start.

        Args:
            api_keys: by the name of whom they are for.
            host_key: for which the hosts ask, if they do.
        """
        self.begin_files()
        resources.write(self.files.clusters, self._clusters(host_key))
        resources.write(self.files.listeners, self._listeners(api_keys, host_key))

    def check(self, api_keys: Mapping[str, str], host_key: str | None) -> None:
        """Let Envoy check the configuration as a whole, before any of it is used.

        Raises:
            GatewayError: it refuses it; in its own words.
        """
        spreading = self._spreading(host_key)
        self.validate(self._listener(api_keys, spreading), [render_hosts(spreading, self._settings)])

    def update(self, api_keys: Mapping[str, str], host_key: str | None) -> bool:
        """Let a running Envoy do what the settings and keys say by now; whether it did something else before.

        Raises:
            GatewayError: Envoy refuses it, or does not say in time that it has read it.
        """
        changed = False
        for file, wanted, subscription in (
            (self.files.clusters, self._clusters(host_key), "cluster_manager.cds"),
            (self.files.listeners, self._listeners(api_keys, host_key), "listener_manager.lds"),
        ):
            if not resources.holds(file, wanted):
                with Admin(self._settings.admin_port) as admin:
                    self.replace(admin, file, wanted, subscription)
                changed = True
        return changed

    def _spreading(self, host_key: str | None) -> Spreading:
        settings = self._settings
        tls = settings.tls
        return Spreading(
            addresses=tuple(_split(host.address) for host in settings.hosts),
            key=host_key,
            authority=self._folder / tls.authority if tls is not None else None,
            server_name=tls.server_name if tls is not None else "",
            node_header=settings.node_header,
            max_load=settings.max_load,
            health_s=settings.health_s,
        )

    def _clusters(self, host_key: str | None) -> list[Json]:
        return [typed("config.cluster.v3.Cluster", **render_hosts(self._spreading(host_key), self._settings))]

    def _listeners(self, api_keys: Mapping[str, str], host_key: str | None) -> list[Json]:
        listener = self._listener(api_keys, self._spreading(host_key))
        return [typed("config.listener.v3.Listener", **listener)]

    def _listener(self, api_keys: Mapping[str, str], spreading: Spreading) -> Json:
        return render_listener(
            self._settings,
            api_keys,
            {"route_config": render_host_routes(spreading, self._settings)},
            self.files.log,
            MAX_REQUEST_BYTES,
            first=[render_ready()],
            last=[render_affinity(spreading.node_header)],
        )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
