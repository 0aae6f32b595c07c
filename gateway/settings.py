"""Reads `gateway.yaml`: what the front door may be told, checked once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import yaml

from gateway.autoscale.policy import ScalePolicy
from gateway.errors import GatewayError
from gateway.judging.policy import Policy

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
HeaderName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]*$", max_length=64)]
_MIN_KEY_LENGTH = 16
_Settings = TypeVar("_Settings", bound="EntranceSettings")
_ModelName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=128)]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files in PEM form; they are read again when they are replaced."""

    certificate: str
    key: str


class Listen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where clients connect.

    Args:
        address: an IP address; 0.0.0.0 is every IPv4 one of this machine.
        tls: none where something before the gateway ends it.
        trusted_proxies: so many proxies stand before the gateway: a client's address is what the outermost of
            them wrote to `X-Forwarded-For`.
        max_connections: further ones are closed at once.
    """

    address: str = "127.0.0.1"
    port: Port = 8000
    tls: Tls | None = None
    trusted_proxies: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    max_connections: _Count = 10_000

    @property
    def url(self) -> str:
        """Where to ask from this machine."""
        host = "127.0.0.1" if self.address in {"0.0.0.0", "::"} else self.address  # noqa: S104
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


class ApiKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may ask, by the header `X-Api-Key`.

    Args:
        file: YAML, a name and a key in each line; read again when it changes.
        variable: of the environment, `name=key,name=key`, for where there is no file.
        required: whether requests without a key are refused (401). Wrong keys are refused wherever there are
            keys.
    """

    file: str | None = None
    variable: str = "HOPSERVE_API_KEYS"
    required: bool = False


class Bucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A token bucket: `burst` requests at once, and `requests_per_s` in the long run."""

    requests_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    burst: _Count


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much each client may ask; more is answered 429.

    Args:
        per_key: each API key; none: as much as it likes.
        keys: of single ones, by name, instead.
        per_address: each address of clients without a key.
        max_clients: so many buckets are kept.
    """

    per_key: Bucket | None = None
    keys: dict[str, Bucket] = {}
    per_address: Bucket | None = None
    max_clients: _Count = 10_000


class TimeOuts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long things may take.

    Args:
        answer_s: a request, all its tries together; then 504.
        try_s: one try; then the next begins, and whichever answers first counts.
        receive_s: until a request has come as a whole; then 408.
        idle_s: a connection without a request.
        connect_s: to TorchServe.
    """

    answer_s: _Seconds = 30.0
    try_s: _Seconds = 10.0
    receive_s: _Seconds = 10.0
    idle_s: _Seconds = 300.0
    connect_s: _Seconds = 1.0


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How requests are sent again that no worker has answered. They only read, so that does no harm.

    Args:
        tries: at most so many more.
        budget: share of the requests in flight that may be such tries, but at least `min_concurrent`.
    """

    tries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 4
    budget: _Share = 0.2
    min_concurrent: _Count = 128


class Breaker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much of a version is asked at once, and when it is left alone.

    Args:
        max_connections, max_requests: to one version, and in flight there; more are answered 503.
        max_pending: requests that wait for a connection.
        low_share: of these numbers, what requests with `X-Priority: low` may take: they are refused first.
        error_rate: above this share of errors a version rests, and degraded answers take its place.
        min_requests: fewer within `interval_s` show nothing.
        rest_s: at first so long; longer each time, up to `max_rest_s`.
    """

    max_connections: _Count = 1_024
    max_requests: _Count = 4_096
    max_pending: _Count = 4_096
    low_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.25
    error_rate: _Share = 0.05
    min_requests: _Count = 50
    interval_s: _Seconds = 1.0
    rest_s: _Seconds = 5.0
    max_rest_s: _Seconds = 30.0


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gateway's log of requests, a JSON object in each line of `logs/gateway.log`.

    Args:
        sample: share of the requests that are logged; errors and slow ones all are, as are those whose
            `traceparent` says that they are traced.
        slow_ms: what is slow.
    """

    sample: _Share = 0.01
    slow_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] = 1_000


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Spans for an OpenTelemetry collector.

    Args:
        host, port: where it takes OTLP over gRPC.
        sample: share of the requests without a `traceparent` of their own that are traced.
    """

    host: str
    port: Port = 4317
    sample: _Share = 0.01


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A port for Prometheus: `/envoy`, `/controller` and `/torchserve`, which else are on loopback only.

    Args:
        address: an IP address. There are no keys here: whoever gets there may read.
    """

    address: str = "127.0.0.1"
    port: Port = 8003


class EntranceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every Envoy is told that clients ask, whatever it leads to.

    Args:
        admin_port: of Envoy's administration, on loopback only.
        threads: that serve requests; 0: half of the cores.
        max_request_bytes: longer ones are answered 413; none: what TorchServe takes.
        metrics: where Prometheus may come from elsewhere; none: it comes to loopback.
    """

    listen: Listen = Listen()
    admin_port: Port = 8001
    threads: Annotated[int, msgspec.Meta(ge=0, le=1_024)] = 0
    max_request_bytes: _Count | None = None
    api_keys: ApiKeys = ApiKeys()
    limits: Limits = Limits()
    time_outs: TimeOuts = TimeOuts()
    retries: Retries = Retries()
    log: Log = Log()
    tracing: Tracing | None = None
    metrics: Metrics | None = None


class GatewaySettings(EntranceSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of `gateway.yaml`.

    Args:
        controller_port: of the controller, on loopback only.
        models: those to serve, with further settings; none: all but those that take changes of a graph.
        sticky_header: requests with the same value of this header go to the same version.
        rollout: what makes a rollout go on, wait or go back.
        autoscale: how many workers the versions of a model have; those of models not named keep theirs.
    """

    controller_port: Port = 8002
    models: tuple[_ModelName, ...] = ()
    sticky_header: HeaderName = "x-sticky-key"
    breaker: Breaker = Breaker()
    rollout: Policy = Policy()
    autoscale: dict[_ModelName, ScalePolicy] = {}


def read_settings(file: Path) -> GatewaySettings:
    """Read a file; one that is not there says that all is as usual.

    Raises:
        GatewayError: it cannot be read, or holds what it must not; names the key.
    """
    return read_yaml(file, GatewaySettings) if file.exists() else GatewaySettings()


def read_yaml(file: Path, kind: type[_Settings]) -> _Settings:
    """Read settings of a kind.

    Raises:
        GatewayError: the file cannot be read, or holds what it must not; names the key.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        return msgspec.convert(content or {}, kind)
    except OSError as error:
        raise GatewayError(f"{file}: cannot be read: {error.strerror}") from None
    except (msgspec.ValidationError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise GatewayError(f"{file}: {' '.join(str(error).split())}") from None


def read_api_keys(settings: ApiKeys, folder: Path, variable: str | None) -> dict[str, str]:
    """Keys by the name of whom they are for; none where there are none.

    Args:
        folder: in which a relative `file` is.
        variable: what the environment's variable holds.

    Raises:
        GatewayError: they cannot be read, or one is too short or there twice. Never shows a key.
    """
    if settings.file is not None:
        source = str(folder / settings.file)
        keys = _keys_of_file(folder / settings.file)
    else:
        source = settings.variable
        keys = _keys_of_text(source, variable or "")
    for name, key in keys.items():
        if len(key) < _MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise GatewayError(
                f"{source}: the key of {name} must be {_MIN_KEY_LENGTH} or more ASCII letters, digits, signs"
            )
    if len(set(keys.values())) < len(keys):
        raise GatewayError(f"{source}: two names have the same key")
    if settings.required and not keys:
        raise GatewayError(f"{source}: keys are required, and there are none")
    return keys


def _keys_of_file(file: Path) -> dict[str, str]:
    try:
        return msgspec.convert(yaml.safe_load(file.read_text(encoding="utf-8")) or {}, dict[str, str])
    except OSError as error:
        raise GatewayError(f"{file}: cannot be read: {error.strerror}") from None
    except (msgspec.ValidationError, yaml.YAMLError, UnicodeDecodeError):
        # Their words may quote a key.
        raise GatewayError(f"{file}: is no YAML of names and keys") from None


def _keys_of_text(source: str, text: str) -> dict[str, str]:
    keys = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, key = part.partition("=")
        if not equals or not name:
            raise GatewayError(f"{source}: is not name=key,name=key")
        keys[name] = key
    return keys
