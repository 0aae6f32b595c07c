"""A number for one model file on one graph: nothing that is stored under another is ever used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from handler.graph.fingerprints import FINGERPRINT_VERSION
from handler.graph.home import GraphHome
from handler.graph.layout import is_home
from handler.graph.manifest import read_manifest


def tag_of(signature: msgspec.Struct, graph: Path) -> int:
    """64 bits that tell a model's files, its sampling and a graph from all others, also of the same names.

    Args:
        signature: of the model, with the checksums of its files.
        graph: folder of the graph; for as long as it is not built anew, it is the same one.

    Raises:
        SnapshotError: it is no graph.
    """
    known = [FINGERPRINT_VERSION, signature, graph_key(graph)]
    return xxhash.xxh3_64_intdigest(msgspec.json.encode(known))


def graph_key(graph: Path) -> str:
    """What a graph is called for as long as it lives, however often it changes.

    Raises:
        SnapshotError: it is no graph.
    """
    return GraphHome.read(graph).graph_id if is_home(graph) else read_manifest(graph).snapshot_id
