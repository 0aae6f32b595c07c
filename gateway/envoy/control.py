"""Tells a running Envoy what to do, through the files that it watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.envoy import resources
from gateway.envoy.admin import Admin
from gateway.envoy.bootstrap import EnvoyFiles
from gateway.envoy.clusters import Upstream, render_clusters
from gateway.envoy.configured import ConfiguredEnvoy
from gateway.envoy.forms import Json, typed, watched
from gateway.envoy.listener import render_listener
from gateway.envoy.metrics import sources_of
from gateway.envoy.routes import ROUTES, render_routes
from gateway.envoy.secrets import render_key
from gateway.settings import GatewaySettings
from gateway.traffic import Traffic
from gateway.upstream.properties import ServerProperties


class EnvoyControl(ConfiguredEnvoy):
    """The files of the Envoy in front of one TorchServe.

    Args:
        files: where they are.
        properties: of the TorchServe behind it.
    """

    def __init__(self, files: EnvoyFiles, settings: GatewaySettings, properties: ServerProperties) -> None:
        super().__init__(files, settings, sources_of(settings, properties))
        self._settings = settings
        self._properties = properties
        self._upstream = Upstream(properties, files.key)

    def write_all(self, traffic: Traffic, api_keys: Mapping[str, str], key: str | None) -> None:
        """Write every file anew, for an Envoy that is about to start.

        Args:
            api_keys: by the name of whom they are for.
            key: of TorchServe, if it asks for one.
        """
        self.begin_files()
        self.write_key(key)
        self.write_listener(api_keys)
        resources.write(self.files.clusters, self._clusters(traffic))
        resources.write(self.files.routes, [_route_resource(traffic, self._settings)])

    def check(self, traffic: Traffic, api_keys: Mapping[str, str]) -> None:
        """Let Envoy check the configuration as a whole, before any of it is used.

        Raises:
            GatewayError: it refuses it; in its own words.
        """
        routes = {"route_config": render_routes(traffic, self._settings)}
        with TemporaryDirectory(prefix="hopserve-") as folder:
            key_file = Path(folder, "key.json")
            resources.write(key_file, [render_key("none")])
            clusters = render_clusters(traffic, self._settings, Upstream(self._properties, key_file))
            self.validate(self._listener(api_keys, routes), clusters)

    def write_key(self, key: str | None) -> None:
        """Let requests have another key of TorchServe from now on."""
        if key is not None:
            resources.write(self.files.key, [render_key(key)])

    def write_listener(self, api_keys: Mapping[str, str]) -> None:
        """Let clients have other keys from now on."""
        routes = {"rds": {"route_config_name": ROUTES, "config_source": watched(self.files.routes)}}
        listener = self._listener(api_keys, routes)
        resources.write(self.files.listeners, [typed("config.listener.v3.Listener", **listener)])

    def move(self, traffic: Traffic) -> None:
        """Move the traffic; returns when Envoy has done so.

        No request meets a moment in between: versions are there before they are routed to, and go when they
        no longer are.

        Raises:
            GatewayError: Envoy refuses it, or does not say in time that it has.
        """
        wanted = self._clusters(traffic)
        names = {cluster["name"] for cluster in wanted}
        kept = [cluster for cluster in resources.read(self.files.clusters) if cluster["name"] not in names]
        routes = [_route_resource(traffic, self._settings)]
        with Admin(self._settings.admin_port) as admin:
            self.replace(admin, self.files.clusters, wanted + kept, "cluster_manager.cds")
            self.replace(admin, self.files.routes, routes, "http.front.rds.routes")
            if kept:
                self.replace(admin, self.files.clusters, wanted, "cluster_manager.cds")

    def is_current(self, traffic: Traffic) -> bool:
        """Whether the files say this already."""
        routes = [_route_resource(traffic, self._settings)]
        return resources.holds(self.files.routes, routes) and resources.holds(
            self.files.clusters, self._clusters(traffic)
        )

    def _listener(self, api_keys: Mapping[str, str], routes: Json) -> Json:
        return render_listener(
            self._settings, api_keys, routes, self.files.log, self._properties.max_request_bytes
        )

    def _clusters(self, traffic: Traffic) -> list[Json]:
        rendered = render_clusters(traffic, self._settings, self._upstream)
        return [typed("config.cluster.v3.Cluster", **cluster) for cluster in rendered]


def _route_resource(traffic: Traffic, settings: GatewaySettings) -> Json:
    return typed("config.route.v3.RouteConfiguration", **render_routes(traffic, settings))
