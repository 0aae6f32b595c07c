"""Writes the files that Envoy reads again whenever they are replaced."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from gateway.envoy.forms import Json
from handler.graph.durable import replace_file


def write(file: Path, resources: list[Json]) -> str:
    """Write resources for Envoy; returns the version that it shows once it has read them."""
    content, version = _resource_file(resources)
    replace_file(file, content)
    return version


def read(file: Path) -> list[Json]:
    """The resources of a file; none where there are none."""
    try:
        resources: list[Json] = msgspec.json.decode(file.read_bytes())["resources"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return []
    return resources


def holds(file: Path, resources: list[Json]) -> bool:
    """Whether a file says just this."""
    try:
        return file.read_bytes() == _resource_file(resources)[0]
    except OSError:
        return False


def encoded(content: Json) -> bytes:
    """Configuration as it is written."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _resource_file(resources: list[Json]) -> tuple[bytes, str]:
    version = xxhash.xxh3_64_hexdigest(msgspec.json.encode(resources))
    return encoded({"version_info": version, "resources": resources}), version
