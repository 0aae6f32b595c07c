"""The few forms that Envoy's configuration repeats everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
_TYPES = "type.googleapis.com/envoy."
Json = dict[str, Any]


def typed(kind: str, /, **fields: Any) -> Json:
    """A message that says its type, named without `envoy.`."""
    return {"@type": _TYPES + kind, **fields}


def extension(name: str, kind: str, /, **fields: Any) -> Json:
    """An extension, such as a filter, by its name and its message."""
    return {"name": name, "typed_config": typed(kind, **fields)}


def address(host: str, port: int) -> Json:
    """Where to listen or connect."""
    return {"socket_address": {"address": host, "port_value": port}}


def address_of(url: str) -> Json:
    """The address in a URL that has a port."""
    parts = urlsplit(url)
    return address(parts.hostname or "", parts.port or 0)


def seconds(duration_s: float) -> str:
    """A duration."""
    return f"{duration_s:.6f}".rstrip("0").rstrip(".") + "s"


def set_header(name: str, value: str) -> Json:
    """A header that takes the place of one that is there."""
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def fraction(share: float) -> Json:
    """A share between 0 and 1."""
    return {"numerator": round(share * 1_000_000), "denominator": "MILLION"}


def watched(file: Path) -> Json:
    """A file that Envoy reads again whenever another takes its place."""
    return {"path_config_source": {"path": str(file)}, "resource_api_version": "V3"}


def error_body(code: str, message: str) -> str:
    """The JSON of an error, as workers write it; neither text may need escaping."""
    return f'{{"error": {{"code": "{code}", "message": "{message}"}}}}'
