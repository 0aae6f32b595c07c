"""Opens what is kept of a model version's answers, where its settings say."""

from __future__ import annotations

import logging
from pathlib import Path

from handler import metrics
from handler.cache.opening import open_cache
from handler.cache.protocol import OutputCache
from handler.cache.store import Store
from handler.cache.table import versions_folder
from handler.cache.tags import graph_key, tag_of
from handler.errors import LogError
from handler.model.signature import Signature
from handler.settings import Settings

_log = logging.getLogger(__name__)


def embeddings_folder(settings: Settings) -> Path:
    """Where tables and the embedded cache of a graph are."""
    return Path(settings.embeddings) if settings.embeddings else Path(settings.graph) / "embeddings"


def cache_folder(settings: Settings, model_name: str) -> Path:
    """Where the embedded cache of a model is, for all its versions."""
    return embeddings_folder(settings) / model_name / "cache"


def cache_prefix(settings: Settings, model_name: str) -> str:
    """What keys of a model on a graph begin with, on a server that others share."""
    return f"{graph_key(Path(settings.graph))}:{model_name}"


def open_store(
    settings: Settings, signature: Signature, model_name: str, version: str, counters: metrics.Counters
) -> Store:
    """The tables and the cache of a model version; a cache that cannot be opened is done without.

    Raises:
        SnapshotError: there is no graph.
    """
    tag = tag_of(signature, Path(settings.graph))
    dim = signature.output_dim
    store = Store(
        tag,
        dim,
        versions_folder(embeddings_folder(settings), model_name, version),
        _open_cache(settings, model_name, version, tag, dim, counters),
    )
    store.watch()
    return store


def _open_cache(
    settings: Settings, model_name: str, version: str, tag: int, dim: int, counters: metrics.Counters
) -> OutputCache | None:
    if settings.cache == "off":
        return None
    try:
        return open_cache(
            settings.cache,
            cache_folder(settings, model_name),
            prefix=cache_prefix(settings, model_name),
            version=version,
            tag=tag,
            dim=dim,
            max_bytes=settings.cache_bytes,
            timeout_ms=settings.cache_timeout_ms,
            ttl_s=settings.cache_ttl_s,
            on_failure=lambda reason: counters.add(metrics.CACHE_FAILURES, 1, reason),
        )
    except LogError as error:
        _log.warning("answers are not kept: %s", error)
        return None
