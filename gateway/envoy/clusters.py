"""Renders Envoy's clusters: one for each version of a model, and one for the controller.

All versions are in one TorchServe, but each has its own breaker, statistics and path there. Behind it stands
the controller, which gives degraded answers while the version cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.envoy.forms import LOOPBACK, Json, address, address_of, extension, seconds, typed, watched
from gateway.envoy.secrets import UPSTREAM_KEY
from gateway.headers import DEGRADED, ORIGINAL_PATH, VERB
from gateway.settings import Breaker, GatewaySettings
from gateway.traffic import Traffic
from gateway.upstream.properties import ServerProperties
from handler import headers

CONTROLLER = "controller"
TRACES = "traces"
_HEALTH_PATH = "/metrics?name[]=none"


@dataclass(frozen=True)
class Upstream:
    """What clusters lead to.

    Args:
        properties: of the TorchServe.
        key_file: in which Envoy finds TorchServe's key.
    """

    properties: ServerProperties
    key_file: Path


def cluster_name(model: str, version: str) -> str:
    """The cluster of a version; neither may hold an `@`."""
    return f"{model}@{version}"


def render_clusters(traffic: Traffic, settings: GatewaySettings, upstream: Upstream) -> list[Json]:
    """All clusters, in the order of the models."""
    return [
        *(_version_cluster(model, version, settings, upstream) for model, version in traffic.names()),
        _controller_cluster(settings),
    ]


def _version_cluster(model: str, version: str, settings: GatewaySettings, upstream: Upstream) -> Json:
    name = cluster_name(model, version)
    properties = upstream.properties
    metrics_port = urlsplit(properties.metrics_url).port
    return {
        "name": name,
        # Versions have dots, which else end a name in Envoy's statistics; `STATS_TAGS` looks for this form.
        "alt_stat_name": f"{name}@",
        "type": "STATIC",
        "connect_timeout": seconds(settings.time_outs.connect_s),
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {"lb_endpoints": [_endpoint(address_of(properties.inference_url), metrics_port)]},
                {"priority": 1, "lb_endpoints": [_endpoint(address(LOOPBACK, settings.controller_port))]},
            ],
        },
        # With nobody healthy, a clear answer at once rather than tries at random.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(settings.breaker),
        "circuit_breakers": _circuit_breakers(settings),
        "typed_extension_protocol_options": _http_options(
            [
                _path_of(model, version),
                *([_key(upstream.key_file)] if properties.token_auth else []),
            ],
            settings,
        ),
    }


def _endpoint(where: Json, health_port: int | None = None) -> Json:
    endpoint: Json = {"address": where}
    if health_port is not None:
        endpoint["health_check_config"] = {"port_value": health_port}
    return {"endpoint": endpoint}


def _health_check() -> Json:
    """Whether the process serves at all, by its metrics, which need no key."""
    return {
        "timeout": "1s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "http_health_check": {"path": _HEALTH_PATH},
    }


def _outlier_detection(breaker: Breaker) -> Json:
    """A version above the rate of errors rests, and so does one that cannot be reached."""
    return {
        "interval": seconds(breaker.interval_s),
        "base_ejection_time": seconds(breaker.rest_s),
        "max_ejection_time": seconds(breaker.max_rest_s),
        "max_ejection_percent": 100,
        "split_external_local_origin_errors": True,
        "failure_percentage_threshold": round(breaker.error_rate * 100),
        "failure_percentage_minimum_hosts": 1,
        "failure_percentage_request_volume": breaker.min_requests,
        "enforcing_failure_percentage": 100,
        "enforcing_failure_percentage_local_origin": 100,
        "consecutive_local_origin_failure": 5,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
    }


def _error_of_the_version() -> Json:
    """An error that a worker has signed; TorchServe's own, as when a worker dies, take a further try.

    That a part of the graph cannot be read is no fault of the version: other nodes are answered as ever.
    """
    by_worker = {"name": headers.WORKER, "present_match": True}
    not_degraded = {"name": DEGRADED, "present_match": True, "invert_match": True}
    not_unreadable = {"name": headers.UNREADABLE, "present_match": True, "invert_match": True}
    is_error = {"name": ":status", "string_match": {"safe_regex": {"regex": "5[0-9]{2}"}}}
    return {"http_response_headers_match": {"headers": [by_worker, not_degraded, not_unreadable, is_error]}}


def _circuit_breakers(settings: GatewaySettings) -> Json:
    breaker, retries = settings.breaker, settings.retries

    def threshold(priority: str, share: float) -> Json:
        return {
            "priority": priority,
            "max_connections": max(1, round(breaker.max_connections * share)),
            "max_pending_requests": max(1, round(breaker.max_pending * share)),
            "max_requests": max(1, round(breaker.max_requests * share)),
            "retry_budget": {
                "budget_percent": {"value": retries.budget * 100},
                "min_retry_concurrency": retries.min_concurrent,
            },
        }

    return {"thresholds": [threshold("DEFAULT", breaker.low_share), threshold("HIGH", 1.0)]}


def _path_of(model: str, version: str) -> Json:
    """Gives each request, and each copy and further try of it, the path of this very version."""
    code = f"""
        function envoy_on_request(request)
          local headers = request:headers()
          if not headers:get("{ORIGINAL_PATH}") then
            headers:add("{ORIGINAL_PATH}", headers:get(":path"))
          end
          headers:replace(":path", "/" .. (headers:get("{VERB}") or "predictions") .. "/{model}/{version}")
        end
    """
    return extension(
        "envoy.filters.http.lua",
        "extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": code},
    )


def _key(file: Path) -> Json:
    credential = extension(
        "envoy.http.injected_credentials.generic",
        "extensions.http.injected_credentials.generic.v3.Generic",
        header="Authorization",
        credential={"name": UPSTREAM_KEY, "sds_config": watched(file)},
    )
    return extension(
        "envoy.filters.http.credential_injector",
        "extensions.filters.http.credential_injector.v3.CredentialInjector",
        overwrite=True,
        credential=credential,
    )


def _controller_cluster(settings: GatewaySettings) -> Json:
    """Where copies of requests are compared; a few at a time, and none is worth waiting for."""
    return {
        "name": CONTROLLER,
        "type": "STATIC",
        "connect_timeout": seconds(settings.time_outs.connect_s),
        "load_assignment": {
            "cluster_name": CONTROLLER,
            "endpoints": [{"lb_endpoints": [_endpoint(address(LOOPBACK, settings.controller_port))]}],
        },
        "circuit_breakers": {
            "thresholds": [
                {"priority": priority, "max_requests": 64, "max_pending_requests": 64}
                for priority in ("DEFAULT", "HIGH")
            ]
        },
        "typed_extension_protocol_options": _http_options([], settings),
    }


def _http_options(filters: list[Json], settings: GatewaySettings) -> Json:
    codec = extension(
        "envoy.filters.http.upstream_codec", "extensions.filters.http.upstream_codec.v3.UpstreamCodec"
    )
    options: dict[str, Any] = {
        "explicit_http_config": {"http_protocol_options": {}},
        "common_http_protocol_options": {"idle_timeout": seconds(settings.time_outs.idle_s)},
    }
    if filters:
        options["http_filters"] = [*filters, codec]
        options["outlier_detection"] = {"error_matcher": _error_of_the_version()}
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
            "extensions.upstreams.http.v3.HttpProtocolOptions", **options
        )
    }
