"""Renders what Envoy is started with: where its files are, its administration and its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway.envoy.clusters import TRACES
from gateway.envoy.forms import LOOPBACK, Json, address, typed, watched
from gateway.envoy.metrics import Sources, render_metrics
from gateway.settings import EntranceSettings, Tracing

_BUCKETS_MS = [1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750]
_BUCKETS_MS += [1000, 1500, 2000, 3000, 5000, 10_000, 30_000, 60_000]
# `alt_stat_name` of a version's cluster is MODEL@VERSION@: the first group is cut out of a statistic's name,
# and the second is the label's value. The labels are those of the workers' metrics.
_STATS_TAGS = {
    "model_name": r"^cluster\.(([^@]+)@)",
    "model_version": r"^cluster\.[^@]+@(([^@]+)@\.)",
    "response_code": r"_rq(_(\d{3}))$",
    "response_code_class": r"_rq(_(\dxx))$",
}


@dataclass(frozen=True)
class EnvoyFiles:
    """The files that Envoy reads, and those that it reads again when they are replaced.

    Args:
        folder: of them all; only its owner may read it, since two of them hold keys.
        log: of requests.
    """

    folder: Path
    log: Path

    @property
    def bootstrap(self) -> Path:
        return self.folder / "envoy.json"

    @property
    def listeners(self) -> Path:
        return self.folder / "listeners.json"

    @property
    def routes(self) -> Path:
        return self.folder / "routes.json"

    @property
    def clusters(self) -> Path:
        return self.folder / "clusters.json"

    @property
    def key(self) -> Path:
        return self.folder / "key.json"


def render_bootstrap(settings: EntranceSettings, files: EnvoyFiles, sources: Sources) -> Json:
    """Envoy's first configuration.

    Args:
        sources: of metrics, beside Envoy itself.
    """
    bootstrap: Json = {
        "node": {"id": "hopserve", "cluster": "hopserve"},
        "admin": {"address": address(LOOPBACK, settings.admin_port)},
        "dynamic_resources": {
            "lds_config": watched(files.listeners),
            "cds_config": watched(files.clusters),
        },
        # Percentiles are brought up to date so often.
        "stats_flush_interval": "0.5s",
        "stats_config": {
            # Everything is also counted apart for clients inside and outside of a network, which we do not
            # tell apart.
            "stats_matcher": {
                "exclusion_list": {
                    "patterns": [{"safe_regex": {"regex": r".*\.(internal|external)\.upstream_rq.*"}}]
                }
            },
            "use_all_default_tags": False,
            "stats_tags": [{"tag_name": name, "regex": regex} for name, regex in _STATS_TAGS.items()],
            "histogram_bucket_settings": [{"match": {"safe_regex": {"regex": ".*"}}, "buckets": _BUCKETS_MS}],
        },
        # Clients may open many connections; without a bound, Envoy warns and could take all descriptors.
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": typed(
                        "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        max_active_downstream_connections=settings.listen.max_connections,
                    ),
                }
            ]
        },
    }
    static: Json = {}
    if settings.metrics is not None:
        static = render_metrics(settings.metrics, settings.admin_port, sources)
    if settings.tracing is not None:
        static.setdefault("clusters", []).append(_traces_cluster(settings.tracing))
    if static:
        bootstrap["static_resources"] = static
    return bootstrap


def _traces_cluster(tracing: Tracing) -> Json:
    endpoint = {"endpoint": {"address": address(tracing.host, tracing.port)}}
    return {
        "name": TRACES,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": TRACES, "endpoints": [{"lb_endpoints": [endpoint]}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": {}},
            )
        },
    }
