"""Renders Envoy's routes: from the path and the headers of a request to one version of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.envoy.clusters import CONTROLLER, cluster_name
from gateway.envoy.filters import AUTHENTICATION, RATE_LIMIT
from gateway.envoy.forms import Json, error_body, extension, fraction, seconds, set_header, typed
from gateway.headers import PRIORITY, VERB, VERSION
from gateway.settings import GatewaySettings
from gateway.traffic import ModelTraffic, Traffic, VersionTraffic
from handler import headers

ROUTES = "routes"
_BY_WEIGHT = "v1"
READY = "/ready"
_READY_TIMEOUT_S = 1.0
_TRIES_OF_WORKERS = 3


@dataclass(frozen=True)
class _Verb:
    """What the last part of a path stands for: TorchServe's word for it, and the methods that it takes."""

    upstream: str
    methods: str


_VERBS = {
    "predict": _Verb("predictions", "POST"),
    "explain": _Verb("explanations", "POST"),
    "health": _Verb("predictions", "GET|HEAD"),
}


def render_routes(traffic: Traffic, settings: GatewaySettings) -> Json:
    """Envoy's route configuration.

    `/v1/MODEL/VERB` goes to a version by weight, or to the one that the header `X-Model-Version` names;
    `/vN/MODEL/VERB` to versions with the major N. `/ready` says whether requests may be sent here.
    """
    routes = [route for model in traffic.models for route in _model_routes(model, settings)]
    routes.append(_ready())
    routes.append(
        {"match": {"prefix": "/"}, **refusal(404, "not_found", "no such path: see /v1/MODEL/predict")}
    )
    return {
        "name": ROUTES,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "routes": routes,
                # A worker's process number is of no use to clients; the request's number is.
                "response_headers_to_remove": [headers.WORKER],
                "response_headers_to_add": [set_header("x-request-id", "%REQ(x-request-id)%")],
                "include_request_attempt_count": False,
            }
        ],
    }


def _model_routes(model: ModelTraffic, settings: GatewaySettings) -> Iterator[Json]:
    for verb, verb_settings in _VERBS.items():
        path = f"/{_BY_WEIGHT}/{model.model}/{verb}"
        yield _other_methods(path, verb_settings)
        yield from _by_version(path, verb, model, settings)
        for major, versions in model.majors.items():
            path = f"/v{major}/{model.model}/{verb}"
            if f"v{major}" != _BY_WEIGHT:
                yield _other_methods(path, verb_settings)
                yield from _each_priority({"path": path}, verb, model, versions, settings)


def _ready() -> Json:
    """What the controller says, to whoever spreads requests over hosts: without a key or a limit."""
    no_filter = typed("config.route.v3.FilterConfig", is_optional=True, disabled=True)
    return {
        "match": {"path": READY, "headers": [_is(":method", "GET")]},
        "route": {"cluster": CONTROLLER, "timeout": seconds(_READY_TIMEOUT_S)},
        "typed_per_filter_config": {AUTHENTICATION: no_filter, RATE_LIMIT: no_filter},
    }


def _other_methods(path: str, verb: _Verb) -> Json:
    """What TorchServe would answer with a description of itself."""
    other = {"name": ":method", "string_match": {"safe_regex": {"regex": verb.methods}}, "invert_match": True}
    return {
        "match": {"path": path, "headers": [other]},
        **refusal(405, "method_not_allowed", f"send {verb.methods.replace('|', ' or ')}"),
    }


def _by_version(path: str, verb: str, model: ModelTraffic, settings: GatewaySettings) -> Iterator[Json]:
    """Routes of one path: by the header that names a version or a major one, else by weight."""
    named = {version.version: (version,) for version in model.versions}
    for name, versions in {**model.majors, **named}.items():
        match = {"path": path, "headers": [_is(VERSION, name)]}
        yield from _each_priority(match, verb, model, versions, settings)
    match = {"path": path, "headers": [{"name": VERSION, "present_match": True}]}
    yield {"match": match, **refusal(404, "unknown_version", f"{model.model} has no such version")}
    if any(version.weight for version in model.versions):
        yield from _each_priority({"path": path}, verb, model, model.versions, settings)
    else:
        yield {
            "match": {"path": path},
            **refusal(503, "not_ready", f"no version of {model.model} takes traffic"),
        }


def _each_priority(
    match: Json,
    verb: str,
    model: ModelTraffic,
    versions: Sequence[VersionTraffic],
    settings: GatewaySettings,
) -> Iterator[Json]:
    """A route for requests of low priority, and one for the others, which may take more of the versions."""
    low = {**match, "headers": [*match.get("headers", ()), _is(PRIORITY, "low")]}
    for matched, priority in ((low, "DEFAULT"), (match, "HIGH")):
        yield {
            "match": matched,
            "route": {**_destination(verb, model, versions, settings), "priority": priority},
            "request_headers_to_add": [
                set_header(VERB, _VERBS[verb].upstream),
                *([set_header(headers.PROBE, "1")] if verb == "health" else []),
            ],
        }


def _destination(
    verb: str, model: ModelTraffic, versions: Sequence[VersionTraffic], settings: GatewaySettings
) -> Json:
    """The versions by weight: if none has any, all that there are, the newest of which is last."""
    weighted = [version for version in versions if version.weight]
    chosen = weighted or [VersionTraffic(versions[-1].version, 1)]
    destination: Json = {
        "weighted_clusters": {
            "use_hash_policy": True,
            "clusters": [
                {"name": cluster_name(model.model, version.version), "weight": version.weight}
                for version in chosen
            ],
        },
        "hash_policy": [{"header": {"header_name": settings.sticky_header}}],
        "timeout": seconds(settings.time_outs.answer_s),
        "retry_policy": _retries(settings),
        "hedge_policy": {"hedge_on_per_try_timeout": True},
    }
    if verb == "predict":
        destination["request_mirror_policies"] = list(_mirrors(model))
    return destination


def _retries(settings: GatewaySettings) -> Json:
    """Send again what no worker has answered: the answers of workers are signed, TorchServe's own are not.

    Its own are those of a worker's death, of a full queue, and of a key that was renewed meanwhile. After
    three tries the next is left to whoever gives degraded answers.
    """
    return {
        "retry_on": "connect-failure,refused-stream,reset,retriable-headers",
        "retriable_headers": [{"name": headers.WORKER, "present_match": True, "invert_match": True}],
        "num_retries": settings.retries.tries,
        "retry_priority": extension(
            "envoy.retry_priorities.previous_priorities",
            "extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=_TRIES_OF_WORKERS,
        ),
        "per_try_timeout": seconds(settings.time_outs.try_s),
        "retry_back_off": {"base_interval": "0.1s", "max_interval": "0.5s"},
    }


def _mirrors(model: ModelTraffic) -> Iterator[Json]:
    shares: dict[str, float] = {}
    if model.shadow is not None:
        shares[cluster_name(model.model, model.shadow)] = model.shadow_share
    shares[CONTROLLER] = model.compared_share
    for cluster, share in shares.items():
        if share > 0:
            yield {"cluster": cluster, "runtime_fraction": {"default_value": fraction(share)}}


def _is(header: str, value: str) -> Json:
    return {"name": header, "string_match": {"exact": value}}


def refusal(status: int, code: str, message: str) -> dict[str, Any]:
    """The fields of a route that answers an error by itself."""
    return {
        "direct_response": {"status": status, "body": {"inline_string": error_body(code, message)}},
        "response_headers_to_add": [set_header("content-type", "application/json")],
    }
