"""Renders the gateway's log of requests."""

from __future__ import annotations

from pathlib import Path

from gateway.envoy.forms import Json, extension, fraction
from gateway.headers import CLIENT, DEGRADED, ORIGINAL_PATH, PRIORITY
from gateway.settings import Log


def render_access_log(settings: Log, file: Path) -> Json:
    """A logger of errors, of what is slow or traced, and of a sample of the rest."""

    def at_least(kind: str, value: int) -> Json:
        comparison = {"op": "GE", "value": {"default_value": value, "runtime_key": f"log.{kind}"}}
        return {kind: {"comparison": comparison}}

    traced = {
        "name": "traceparent",
        "string_match": {"safe_regex": {"regex": "[0-9a-f]{2}-.*-[0-9a-f][13579bdf]"}},
    }
    sampled = {"runtime_key": "log.sample", "percent_sampled": fraction(settings.sample)}
    return {
        **extension(
            "envoy.access_loggers.file",
            "extensions.access_loggers.file.v3.FileAccessLog",
            path=str(file),
            log_format={"json_format": _LOGGED, "omit_empty_values": True},
        ),
        "filter": {
            "or_filter": {
                "filters": [
                    at_least("status_code_filter", 500),
                    at_least("duration_filter", settings.slow_ms),
                    {"header_filter": {"header": traced}},
                    {"runtime_filter": sampled},
                ]
            }
        },
    }


_LOGGED = {
    "time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "traceparent": "%REQ(TRACEPARENT)%",
    "client": f"%REQ({CLIENT})%",
    "address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "method": "%REQ(:METHOD)%",
    "path": f"%REQ({ORIGINAL_PATH}?:PATH)%",
    "priority": f"%REQ({PRIORITY})%",
    "version": "%UPSTREAM_CLUSTER_RAW%",
    "host": "%UPSTREAM_HOST%",
    "tries": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "degraded": f"%RESP({DEGRADED})%",
    "request_bytes": "%BYTES_RECEIVED%",
    "response_bytes": "%BYTES_SENT%",
    "ms": "%DURATION%",
    "ms_until_sent": "%REQUEST_TX_DURATION%",
    "ms_until_answered": "%RESPONSE_DURATION%",
}
