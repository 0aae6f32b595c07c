"""Renders what Envoy itself answers where it refuses a request, as JSON like that of workers."""

from __future__ import annotations

import math

from gateway.envoy.forms import Json, error_body, set_header
from gateway.settings import Limits


def render_replies(limits: Limits) -> Json:
    """What Envoy itself refuses, as JSON like that of workers."""
    codes = {
        400: ("malformed", "the request is not valid HTTP"),
        401: ("unauthorized", "send a valid key in the header X-Api-Key"),
        408: ("request_timeout", "the request did not come as a whole in time"),
        413: ("request_too_large", "the request is longer than the gateway takes"),
        429: ("rate_limited", "too many requests from this client: wait as Retry-After says"),
        431: ("headers_too_large", "the headers are longer than the gateway takes"),
        503: ("unavailable", "no worker can answer now: try again"),
        504: ("timeout", "no answer came in time"),
    }
    waits = {429: _retry_after_s(limits), 503: 1}
    return {"mappers": [_reply(status, *words, waits.get(status)) for status, words in codes.items()]}


def _reply(status: int, code: str, message: str, retry_after_s: int | None) -> Json:
    reply: Json = {
        "filter": {
            "status_code_filter": {
                "comparison": {
                    "op": "EQ",
                    "value": {"default_value": status, "runtime_key": f"reply.{status}"},
                }
            }
        },
        "body_format_override": {
            "text_format_source": {"inline_string": error_body(code, message)},
            "content_type": "application/json",
        },
    }
    if retry_after_s is not None:
        reply["headers_to_add"] = [set_header("retry-after", str(retry_after_s))]
    return reply


def _retry_after_s(limits: Limits) -> int:
    """After so long the slowest bucket has a token again."""
    buckets = [*limits.keys.values(), *filter(None, (limits.per_key, limits.per_address))]
    return max((math.ceil(1 / bucket.requests_per_s) for bucket in buckets), default=1)
