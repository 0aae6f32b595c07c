"""Renders what spreads requests over hosts: those about a node go to the same one while it is ready."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.envoy.forms import Json, address, extension, seconds, set_header, typed
from gateway.envoy.routes import READY, refusal
from gateway.headers import AFFINITY, API_KEY, DEGRADED
from gateway.settings import EntranceSettings

HOSTS = "hosts"
_PATHS = "/v[0-9]+/[^/]+/(predict|explain|health)"
_LOOKED_AT_BYTES = 16_384  # of a body, for its first node
_POINTS = 1_024  # at least, on the ring on which hosts and nodes lie
_IDLE_S = 60.0  # less than hosts keep a connection without a request
_RESOLVE_S = 2.0


@dataclass(frozen=True)
class Spreading:
    """How requests are spread.

    Args:
        addresses: pairs of host and port; each address of a name with several counts.
        key: which the hosts ask for, if any.
        authority: PEM file of who issues the hosts' certificates; none: connections are not encrypted.
        server_name: for which their certificates are.
        node_header: in which clients may name what belongs together.
        max_load: the most that a host is given, in even shares.
        health_s: between looks at each host.
    """

    addresses: tuple[tuple[str, int], ...]
    key: str | None
    authority: Path | None
    server_name: str
    node_header: str
    max_load: float
    health_s: float


def render_hosts(spreading: Spreading, settings: EntranceSettings) -> Json:
    """The cluster of all hosts.

    Each lies at many points of a ring, and a request goes to the host that follows its node there: so when a
    host comes or goes, its own share of the nodes moves, and few others.
    """
    many = settings.listen.max_connections
    cluster: Json = {
        "name": HOSTS,
        "cluster_type": extension(
            "envoy.clusters.dns",
            "extensions.clusters.dns.v3.DnsCluster",
            dns_refresh_rate=seconds(_RESOLVE_S),
            dns_lookup_family="V4_PREFERRED",
        ),
        "connect_timeout": seconds(settings.time_outs.connect_s),
        "load_assignment": {
            "cluster_name": HOSTS,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(*each)}} for each in spreading.addresses]}
            ],
        },
        "lb_policy": "RING_HASH",
        "ring_hash_lb_config": {"minimum_ring_size": _POINTS},
        "common_lb_config": {
            # If none says that it is ready, all are tried: it may be those who say so that are gone.
            "healthy_panic_threshold": {"value": 1},
            "update_merge_window": "0s",  # what is seen of a host counts at once
            "consistent_hashing_lb_config": {"hash_balance_factor": round(spreading.max_load * 100)},
        },
        "health_checks": [
            {
                "timeout": "1s",
                "interval": seconds(spreading.health_s),
                "no_traffic_interval": seconds(spreading.health_s),
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": READY},
            }
        ],
        "outlier_detection": _outlier_detection(),
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": many,
                    "max_pending_requests": many,
                    "max_requests": many,
                    "retry_budget": {
                        "budget_percent": {"value": settings.retries.budget * 100},
                        "min_retry_concurrency": settings.retries.min_concurrent,
                    },
                }
            ]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http_protocol_options": {}},
                common_http_protocol_options={"idle_timeout": seconds(_IDLE_S)},
            )
        },
    }
    if spreading.authority is not None:
        cluster["transport_socket"] = _tls(spreading.authority, spreading.server_name)
    return cluster


def render_host_routes(spreading: Spreading, settings: EntranceSettings) -> Json:
    """The route configuration: what gateways of hosts take is for any of them, and all else is refused."""
    key = [set_header(API_KEY, spreading.key)] if spreading.key is not None else []
    return {
        "name": HOSTS,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "routes": [
                    {
                        "match": {"safe_regex": {"regex": _PATHS}},
                        "route": _destination(settings),
                        "request_headers_to_add": key,
                    },
                    {
                        "match": {"prefix": "/"},
                        **refusal(404, "not_found", "no such path: see /v1/MODEL/predict"),
                    },
                ],
                "response_headers_to_add": [set_header("x-request-id", "%REQ(x-request-id)%")],
                "include_request_attempt_count": False,
            }
        ],
    }


def render_ready() -> Json:
    """A filter that says at `/ready` whether any host is ready, and this Envoy not about to end."""
    return extension(
        "envoy.filters.http.health_check",
        "extensions.filters.http.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=[{"name": ":path", "string_match": {"exact": READY}}],
        cluster_min_healthy_percentages={HOSTS: {"value": 1}},
    )


def render_affinity(node_header: str) -> Json:
    """A filter that finds what decides the host: what the client's header says, else the first node.

    It need not understand every body: it decides only where a request goes, not what it means.
    """
    code = f"""
        local starts = {{ '"node_ids?"%s*:%s*%[?%s*', '"pairs"%s*:%s*%[%s*%[%s*' }}
        local function first_node(text)
          for _, start in ipairs(starts) do
            local node = string.match(text, start .. '"([^"]*)"') or string.match(text, start .. '(-?%d+)')
            if node then return node end
          end
        end
        function envoy_on_request(request)
          local node = request:headers():get("{node_header}")
          if not node then
            local body = request:body()
            if body then node = first_node(body:getBytes(0, math.min(body:length(), {_LOOKED_AT_BYTES}))) end
          end
          if node then request:headers():replace("{AFFINITY}", node) end
        end
    """
    return extension(
        "envoy.filters.http.lua",
        "extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": code},
    )


def _destination(settings: EntranceSettings) -> Json:
    return {
        "cluster": HOSTS,
        "hash_policy": [{"header": {"header_name": AFFINITY}}],
        "timeout": seconds(settings.time_outs.answer_s),
        "retry_policy": _retries(settings),
        "hedge_policy": {"hedge_on_per_try_timeout": True},
    }


def _retries(settings: EntranceSettings) -> Json:
    """Ask another host where one cannot answer, or only in a degraded way; the last answer counts."""
    return {
        "retry_on": "connect-failure,refused-stream,reset,gateway-error,retriable-headers",
        "retriable_headers": [{"name": DEGRADED, "present_match": True}],
        "num_retries": settings.retries.tries,
        "retry_host_predicate": [
            extension(
                "envoy.retry_host_predicates.previous_hosts",
                "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
        # Points further on the ring, many of which are the same host's.
        "host_selection_retry_max_attempts": 64,
        "per_try_timeout": seconds(settings.time_outs.try_s),
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
    }


def _outlier_detection() -> Json:
    """A host that cannot be reached rests; what a host answers says only that another one should be asked."""
    return {
        "interval": "1s",
        "base_ejection_time": "2s",
        "max_ejection_time": "30s",
        "max_ejection_percent": 50,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
    }


def _tls(authority: Path, server_name: str) -> Json:
    name = {"san_type": "DNS", "matcher": {"exact": server_name}}
    validation: dict[str, Any] = {
        "trusted_ca": {"filename": str(authority)},
        "match_typed_subject_alt_names": [name],
    }
    return extension(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        sni=server_name,
        common_tls_context={"validation_context": validation},
    )
