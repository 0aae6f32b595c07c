"""Tells a running Envoy what to do, through the files that it watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import xxhash

from gateway.envoy.admin import Admin
from gateway.envoy.bootstrap import EnvoyFiles, render_bootstrap
from gateway.envoy.clusters import Upstream, render_clusters
from gateway.envoy.forms import Json, typed, watched
from gateway.envoy.listener import render_listener
from gateway.envoy.process import validate
from gateway.envoy.routes import ROUTES, render_routes
from gateway.envoy.secrets import render_key
from gateway.errors import GatewayError
from gateway.settings import GatewaySettings
from gateway.traffic import Traffic
from gateway.upstream.properties import ServerProperties
from handler.graph.durable import replace_file

_TIMEOUT_S = 10.0
_POLL_S = 0.01


class EnvoyControl:
    """The files of one Envoy.

    Args:
        files: where they are.
        properties: of the TorchServe behind it.
    """

    def __init__(self, files: EnvoyFiles, settings: GatewaySettings, properties: ServerProperties) -> None:
        self._files = files
        self._settings = settings
        self._properties = properties
        self._upstream = Upstream(properties, files.key)

    def write_all(self, traffic: Traffic, api_keys: Mapping[str, str], key: str | None) -> None:
        """Write every file anew, for an Envoy that is about to start.

        Args:
            api_keys: by the name of whom they are for.
            key: of TorchServe, if it asks for one.
        """
        self._files.folder.mkdir(parents=True, exist_ok=True)
        self._files.folder.chmod(0o700)
        self._files.log.parent.mkdir(parents=True, exist_ok=True)
        self.write_key(key)
        self.write_listener(api_keys)
        _write(self._files.clusters, self._clusters(traffic))
        _write(self._files.routes, [_route_resource(traffic, self._settings)])
        replace_file(self._files.bootstrap, self._bootstrap())

    def check(self, traffic: Traffic, api_keys: Mapping[str, str]) -> None:
        """Let Envoy check the configuration as a whole, before any of it is used.

        Raises:
            GatewayError: it refuses it; in its own words.
        """
        whole = render_bootstrap(self._settings, self._files, self._properties)
        del whole["dynamic_resources"]
        routes = {"route_config": render_routes(traffic, self._settings)}
        static = whole.setdefault("static_resources", {})
        static["listeners"] = [*static.get("listeners", ()), self._listener(api_keys, routes)]
        with TemporaryDirectory(prefix="hopserve-") as folder:
            key_file = Path(folder, "key.json")
            _write(key_file, [render_key("none")])
            upstream = Upstream(self._properties, key_file)
            clusters = render_clusters(traffic, self._settings, upstream)
            static["clusters"] = [*static.get("clusters", ()), *clusters]
            checked = Path(folder, "envoy.json")
            checked.write_bytes(_encoded(whole))
            validate(checked)

    def write_key(self, key: str | None) -> None:
        """Let requests have another key of TorchServe from now on."""
        if key is not None:
            _write(self._files.key, [render_key(key)])

    def write_listener(self, api_keys: Mapping[str, str]) -> None:
        """Let clients have other keys from now on."""
        routes = {"rds": {"route_config_name": ROUTES, "config_source": watched(self._files.routes)}}
        listener = self._listener(api_keys, routes)
        _write(self._files.listeners, [typed("config.listener.v3.Listener", **listener)])

    def move(self, traffic: Traffic) -> None:
        """Move the traffic; returns when Envoy has done so.

        No request meets a moment in between: versions are there before they are routed to, and go when they
        no longer are.

        Raises:
            GatewayError: Envoy refuses it, or does not say in time that it has.
        """
        wanted = self._clusters(traffic)
        names = {cluster["name"] for cluster in wanted}
        kept = [cluster for cluster in _read(self._files.clusters) if cluster["name"] not in names]
        routes = [_route_resource(traffic, self._settings)]
        with Admin(self._settings.admin_port) as admin:
            self._replace(admin, self._files.clusters, wanted + kept, "cluster_manager.cds")
            self._replace(admin, self._files.routes, routes, "http.front.rds.routes")
            if kept:
                self._replace(admin, self._files.clusters, wanted, "cluster_manager.cds")

    def is_running(self) -> bool:
        """Whether an Envoy that was started with these files listens; not another one on the same port."""
        with Admin(self._settings.admin_port) as admin:
            return admin.is_ready() and admin.configuration() == self._files.bootstrap

    def is_started_alike(self) -> bool:
        """Whether an Envoy that was started with the files of before would be started so again."""
        try:
            return self._files.bootstrap.read_bytes() == self._bootstrap()
        except OSError:
            return False

    def is_current(self, traffic: Traffic) -> bool:
        """Whether the files say this already."""
        routes = [_route_resource(traffic, self._settings)]
        return _reads(self._files.routes, routes) and _reads(self._files.clusters, self._clusters(traffic))

    def _bootstrap(self) -> bytes:
        return _encoded(render_bootstrap(self._settings, self._files, self._properties))

    def _listener(self, api_keys: Mapping[str, str], routes: Json) -> Json:
        max_bytes = self._settings.max_request_bytes or self._properties.max_request_bytes
        return render_listener(self._settings, api_keys, routes, self._files.log, max_bytes)

    def _clusters(self, traffic: Traffic) -> list[Json]:
        rendered = render_clusters(traffic, self._settings, self._upstream)
        return [typed("config.cluster.v3.Cluster", **cluster) for cluster in rendered]

    def _replace(self, admin: Admin, file: Path, resources: list[Json], subscription: str) -> None:
        """Write a file, and wait until Envoy has read it."""
        rejected = f"{subscription}.update_rejected"
        num_rejected = admin.numbers(f"^{rejected}$").get(rejected, 0)
        version = _write(file, resources)
        said = f"{subscription}.version_text"
        deadline = time.monotonic() + _TIMEOUT_S
        while admin.texts(f"^{said}$").get(said) != version:
            if admin.numbers(f"^{rejected}$").get(rejected, 0) > num_rejected:
                raise GatewayError(f"Envoy refuses {file}; its log says why")
            if time.monotonic() > deadline:
                raise GatewayError(f"Envoy has not read {file} after {_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)


def _route_resource(traffic: Traffic, settings: GatewaySettings) -> Json:
    return typed("config.route.v3.RouteConfiguration", **render_routes(traffic, settings))


def _write(file: Path, resources: list[Json]) -> str:
    """Write resources for Envoy; returns the version that it shows once it has read them."""
    content, version = _resource_file(resources)
    replace_file(file, content)
    return version


def _resource_file(resources: list[Json]) -> tuple[bytes, str]:
    version = xxhash.xxh3_64_hexdigest(msgspec.json.encode(resources))
    return _encoded({"version_info": version, "resources": resources}), version


def _read(file: Path) -> list[Json]:
    try:
        resources: list[Json] = msgspec.json.decode(file.read_bytes())["resources"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return []
    return resources


def _reads(file: Path, resources: list[Json]) -> bool:
    try:
        return file.read_bytes() == _resource_file(resources)[0]
    except OSError:
        return False


def _encoded(content: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
