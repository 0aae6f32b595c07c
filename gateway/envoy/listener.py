"""Renders Envoy's listener: what every request passes before it is routed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.envoy.access_log import render_access_log
from gateway.envoy.clusters import TRACES
from gateway.envoy.filters import render_filters
from gateway.envoy.forms import Json, address, extension, seconds, typed
from gateway.envoy.replies import render_replies
from gateway.headers import DIVERTING
from gateway.settings import EntranceSettings

LISTENER = "front"
_ANONYMOUS = "anonymous"
# What is only the gateway's to set: `DIVERTING` ones send a request to TorchServe's own functions.
_INTERNAL_HEADERS = ("authorization", *DIVERTING)
_INTERNAL_PREFIXES = ("x-hopserve-", "x-envoy-")


def render_listener(
    settings: EntranceSettings,
    api_keys: Mapping[str, str],
    routes: Json,
    log_file: Path,
    max_bytes: int,
    **more_filters: Sequence[Json],
) -> Json:
    """The one listener that clients connect to.

    Args:
        api_keys: by the name of whom they are for.
        routes: the fields that say what its routes are, or where.
        log_file: to which it writes a line for some requests.
        max_bytes: of a request, where the settings say nothing.
        more_filters: `first` and `last`; see `render_filters`.
    """
    filters = list(
        render_filters(settings, api_keys, settings.max_request_bytes or max_bytes, **more_filters)
    )
    chain: Json = {"filters": [_http(settings, filters, routes, log_file)]}
    if settings.listen.tls is not None:
        files = settings.listen.tls
        certificate = {
            "certificate_chain": {"filename": files.certificate},
            "private_key": {"filename": files.key},
            "watched_directory": {"path": str(Path(files.certificate).parent)},
        }
        chain["transport_socket"] = extension(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            common_tls_context={
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificates": [certificate],
                "alpn_protocols": ["h2", "http/1.1"],
            },
        )
    return {
        "name": LISTENER,
        "address": address(settings.listen.address, settings.listen.port),
        "filter_chains": [chain],
        # Else another process could listen there as well, and take some of the requests.
        "enable_reuse_port": False,
        # A client that reads slowly must not make Envoy keep much for it.
        "per_connection_buffer_limit_bytes": 1 << 20,
    }


def _http(settings: EntranceSettings, filters: list[Json], routes: Json, log_file: Path) -> Json:
    waits = settings.time_outs
    fields: dict[str, Any] = {
        "stat_prefix": LISTENER,
        "codec_type": "AUTO",
        **routes,
        "http_filters": filters,
        "early_header_mutation_extensions": [_strip()],
        # Nobody is trusted with Envoy's own headers, wherever they connect from.
        "use_remote_address": True,
        "xff_num_trusted_hops": settings.listen.trusted_proxies,
        "internal_address_config": {"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        "preserve_external_request_id": True,
        "request_id_extension": {
            "typed_config": typed(
                "extensions.request_id.uuid.v3.UuidRequestIdConfig", pack_trace_reason=False
            )
        },
        # What is not plain is refused rather than mended.
        "normalize_path": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "common_http_protocol_options": {
            "idle_timeout": seconds(waits.idle_s),
            "headers_with_underscores_action": "REJECT_REQUEST",
            "max_headers_count": 64,
        },
        "max_request_headers_kb": 16,
        "request_headers_timeout": seconds(waits.receive_s),
        "request_timeout": seconds(waits.receive_s),
        "stream_idle_timeout": seconds(waits.answer_s + waits.receive_s),
        "http2_protocol_options": {
            "max_concurrent_streams": 256,
            "initial_stream_window_size": 1 << 16,
            "initial_connection_window_size": 1 << 20,
        },
        "drain_timeout": "5s",
        "server_header_transformation": "PASS_THROUGH",
        "access_log": [render_access_log(settings.log, log_file)],
        "local_reply_config": render_replies(settings.limits),
    }
    if settings.tracing is not None:
        fields["tracing"] = _tracing(settings.tracing.sample)
    return extension(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        **fields,
    )


def _strip() -> Json:
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[
            *({"remove": name} for name in _INTERNAL_HEADERS),
            *({"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in _INTERNAL_PREFIXES),
        ],
    )


def _tracing(sample: float) -> Json:
    return {
        "random_sampling": {"value": sample * 100},
        "spawn_upstream_span": True,
        "provider": extension(
            "envoy.tracers.opentelemetry",
            "config.trace.v3.OpenTelemetryConfig",
            grpc_service={"envoy_grpc": {"cluster_name": TRACES}, "timeout": "1s"},
            service_name="hopserve-gateway",
        ),
    }
