"""Renders the filters between a client and the routes: keys, limits, and waiting for the whole request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.envoy.forms import Json, extension, fraction, seconds
from gateway.headers import API_KEY, CLIENT
from gateway.settings import Bucket, EntranceSettings, Limits

AUTHENTICATION = "envoy.filters.http.api_key_auth"
RATE_LIMIT = "envoy.filters.http.local_ratelimit"
_STATISTICS = "front"
_ANONYMOUS = "anonymous"


def render_filters(
    settings: EntranceSettings,
    api_keys: Mapping[str, str],
    max_bytes: int,
    first: Sequence[Json] = (),
    last: Sequence[Json] = (),
) -> Iterator[Json]:
    """The filters that a request passes, in their order.

    Args:
        api_keys: by the name of whom they are for.
        max_bytes: of a request.
        first, last: further ones, before all others and right before the routes.
    """
    yield from first
    if api_keys:
        yield _authentication(api_keys, required=settings.api_keys.required)
    if _has_limits(settings.limits):
        yield _rate_limit(settings.limits)
    # A request is passed on when it has come as a whole: who sends slowly keeps no worker waiting.
    yield extension(
        "envoy.filters.http.buffer", "extensions.filters.http.buffer.v3.Buffer", max_request_bytes=max_bytes
    )
    yield _only_once()
    yield from last
    yield extension(
        "envoy.filters.http.router", "extensions.filters.http.router.v3.Router", suppress_envoy_headers=True
    )


def _only_once() -> Json:
    """Sends a request that stores a described node only once: twice, it might add its edges twice."""
    code = """
        function envoy_on_request(request)
          local body = request:body()
          if body and string.find(body:getBytes(0, body:length()), '"store"', 1, true) then
            request:headers():replace("x-envoy-max-retries", "0")
          end
        end
    """
    return extension(
        "envoy.filters.http.lua",
        "extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": code},
    )


def _authentication(api_keys: Mapping[str, str], *, required: bool) -> Json:
    filtered = extension(
        AUTHENTICATION,
        "extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
        credentials=[{"key": key, "client": client} for client, key in sorted(api_keys.items())],
        key_sources=[{"header": API_KEY}],
        forwarding={"header": CLIENT, "hide_credentials": True},
    )
    if required:
        return filtered
    has_key = {
        "single_predicate": {
            "input": extension(
                "request-headers", "type.matcher.v3.HttpRequestHeaderMatchInput", header_name=API_KEY
            ),
            "value_match": {"safe_regex": {"google_re2": {}, "regex": "(?s).*"}},
        }
    }
    skip = {"action": extension("skip", "extensions.filters.common.matcher.action.v3.SkipFilter")}
    return extension(
        AUTHENTICATION,
        "extensions.common.matching.v3.ExtensionWithMatcher",
        extension_config=filtered,
        xds_matcher={
            "matcher_list": {"matchers": [{"predicate": {"not_matcher": has_key}, "on_match": skip}]}
        },
    )


def _has_limits(limits: Limits) -> bool:
    return bool(limits.per_key or limits.keys or limits.per_address)


def _rate_limit(limits: Limits) -> Json:
    """Token buckets, one for each client: for all threads of Envoy, and made when a client first asks."""
    descriptors = [
        _bucket([{"key": CLIENT, "value": name}], bucket) for name, bucket in sorted(limits.keys.items())
    ]
    if limits.per_key is not None:
        descriptors.append(_bucket([{"key": CLIENT}], limits.per_key))
    if limits.per_address is not None:
        entries = [{"key": _ANONYMOUS, "value": "yes"}, {"key": "remote_address"}]
        descriptors.append(_bucket(entries, limits.per_address))
    no_client = {
        "header_value_match": {
            "descriptor_key": _ANONYMOUS,
            "descriptor_value": "yes",
            "expect_match": False,
            "headers": [{"name": CLIENT, "present_match": True}],
        }
    }
    return extension(
        RATE_LIMIT,
        "extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        stat_prefix=_STATISTICS,
        filter_enabled={"default_value": fraction(1)},
        filter_enforced={"default_value": fraction(1)},
        # The bucket of what no descriptor is for: nothing that could be limited by it.
        token_bucket={"max_tokens": 1_000_000_000, "tokens_per_fill": 1_000_000_000, "fill_interval": "1s"},
        rate_limits=[
            {"actions": [{"request_headers": {"header_name": CLIENT, "descriptor_key": CLIENT}}]},
            {"actions": [no_client, {"remote_address": {}}]},
        ],
        descriptors=descriptors,
        max_dynamic_descriptors=limits.max_clients,
        enable_x_ratelimit_headers="DRAFT_VERSION_03",
    )


def _bucket(entries: list[Json], bucket: Bucket) -> Json:
    """A bucket that is filled often and a little, as far as tokens are whole."""
    per_fill = max(1, round(bucket.requests_per_s * 0.05))
    return {
        "entries": entries,
        "token_bucket": {
            "max_tokens": bucket.burst,
            "tokens_per_fill": per_fill,
            "fill_interval": seconds(max(0.05, per_fill / bucket.requests_per_s)),
        },
    }
