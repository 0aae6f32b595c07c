"""Renders the port at which Prometheus reads everything, where it cannot come to loopback."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.envoy.forms import LOOPBACK, Json, address, address_of, extension, typed
from gateway.settings import GatewaySettings, Metrics
from gateway.upstream.properties import ServerProperties

_TIMEOUT = "10s"
# The path that gives metrics and the address of what has them, by the name under which Prometheus asks.
Sources = Mapping[str, tuple[str, Json]]


def sources_of(settings: GatewaySettings, properties: ServerProperties) -> Sources:
    """What has metrics beside the Envoy of a gateway."""
    return {
        "controller": ("/metrics", address(LOOPBACK, settings.controller_port)),
        "torchserve": ("/metrics", address_of(properties.metrics_url)),
    }


def render_metrics(listen: Metrics, admin_port: int, others: Sources) -> Json:
    """Static resources: a listener with a path for each source, and what each leads to.

    Nothing else of Envoy's administration can be reached by it: that one can end Envoy.

    Args:
        listen: where Prometheus comes.
        others: beside Envoy itself.
    """
    sources = {"envoy": ("/stats/prometheus", address(LOOPBACK, admin_port)), **others}
    return {
        "listeners": [_listener(listen, {name: path for name, (path, _) in sources.items()})],
        "clusters": [_cluster(name, where) for name, (_, where) in sources.items()],
    }


def _cluster_name(source: str) -> str:
    return f"metrics_{source}"


def _listener(listen: Metrics, paths: dict[str, str]) -> Json:
    routes = [
        {
            "match": {
                "path": f"/{source}",
                "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
            },
            "route": {"cluster": _cluster_name(source), "prefix_rewrite": path, "timeout": _TIMEOUT},
        }
        for source, path in paths.items()
    ]
    manager = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="metrics",
        normalize_path=True,
        route_config={"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": routes}]},
        http_filters=[extension("envoy.filters.http.router", "extensions.filters.http.router.v3.Router")],
    )
    connections = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": "metrics",
        "address": address(listen.address, listen.port),
        "filter_chains": [{"filters": [connections]}],
        "enable_reuse_port": False,
    }


def _cluster(source: str, where: Json) -> Json:
    name = _cluster_name(source)
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": where}}]}]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }
