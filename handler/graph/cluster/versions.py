"""Which version of a graph counts in a cluster, and what it is."""

from __future__ import annotations

import msgspec

from handler.errors import GraphUnavailable
from handler.graph.cluster.layout import FORMAT_VERSION, ClusterManifest, Keys
from handler.graph.cluster.shards import Shards


def current_version(shards: Shards, name: str) -> tuple[str, ClusterManifest] | None:
    """The version that counts under a name; none without any.

    Raises:
        GraphUnavailable: it is of another format, or the cluster cannot be asked.
    """
    version = (shards.get(Keys.current(name)) or b"").decode()
    data = shards.get(Keys(name, version).manifest) if version else None
    if data is None:
        return None
    try:
        manifest = msgspec.json.decode(data, type=ClusterManifest)
    except msgspec.DecodeError as error:
        raise GraphUnavailable(f"{name}: its manifest cannot be read: {error}") from None
    if manifest.format_version != FORMAT_VERSION:
        raise GraphUnavailable(
            f"{name}: format_version is {manifest.format_version}, this Hopserve reads {FORMAT_VERSION}"
        )
    return version, manifest
